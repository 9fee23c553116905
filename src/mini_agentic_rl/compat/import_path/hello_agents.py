"""Found in processes that one with `mini_agentic_rl.compat.alias()` has started: makes the name an alias there too."""

import sys
from importlib import import_module

from mini_agentic_rl.compat import alias

del sys.modules[__name__]
alias()
sys.modules[__name__] = import_module(__name__)
