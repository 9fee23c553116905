"""`python -m mini_agentic_rl` is the command `mini-agentic-rl`."""

from .cli import app

app()
