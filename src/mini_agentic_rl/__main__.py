"""`python -m mini_agentic_rl` is the command `mini-agentic-rl`."""

from . import cli

cli.app()
