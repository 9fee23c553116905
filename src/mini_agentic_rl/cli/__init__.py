"""The commands `mini-agentic-rl` and `agl`. Importing this imports no torch."""

from .app import app

__all__ = ["app"]
