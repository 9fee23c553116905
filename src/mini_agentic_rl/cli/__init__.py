"""The entry point of the commands `mini-agentic-rl` and `agl`: `mini_agentic_rl.cli:app`."""

import sys

try:
    from ..commands import app
except KeyboardInterrupt:  # Ctrl-C while the modules are imported, before `with_errors`
    sys.stderr.write("interrupted\n")
    sys.exit(130)

__all__ = ["app"]
