"""Older import names: a table of modules that have moved, and the import finder that knows it.

`names` is the table, `finder` hands out the very module that stands there now. `mini_agentic_rl` installs it when it is
imported, which costs nothing until an older name is asked for.
"""

from .finder import install
from .names import ELSEWHERE, MOVED, current, find_elsewhere

__all__ = ["ELSEWHERE", "MOVED", "current", "find_elsewhere", "install"]
