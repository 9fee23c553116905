"""Older import names: a table of modules that have moved, and the import finder that knows it.

`names` is the table, `finder` hands out the very module that stands there now. `mini_agentic_rl` installs it when it is
imported, which costs nothing until an older name is asked for. `alias` adds the names of other packages, for programs
that were written for those; `python -m mini_agentic_rl.compat run` starts one.
"""

from .aliases import alias
from .finder import install
from .names import ALIASES, ELSEWHERE, MOVED, attach_names, current, find_elsewhere

__all__ = ["ALIASES", "ELSEWHERE", "MOVED", "alias", "attach_names", "current", "find_elsewhere", "install"]
