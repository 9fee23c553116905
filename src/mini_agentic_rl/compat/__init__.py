"""Older import names: a table of moved modules, and an import finder for them.

`names` is the table; `finder` resolves an older name to the module itself. `mini_agentic_rl` installs the finder when
it is imported, which costs nothing until an older name is used. `alias` adds the names of other packages, for programs
that were written for them; `python -m mini_agentic_rl.compat run` starts such a program.
"""

from .finder import alias, install
from .names import ALIASES, ELSEWHERE, MOVED, attach_names, current, find_elsewhere

__all__ = ["ALIASES", "ELSEWHERE", "MOVED", "alias", "attach_names", "current", "find_elsewhere", "install"]
