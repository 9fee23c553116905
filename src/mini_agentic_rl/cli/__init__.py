"""The entry point of the commands `mini-agentic-rl` and `agl`: `mini_agentic_rl.cli:app`."""

from ..commands import app

__all__ = ["app"]
