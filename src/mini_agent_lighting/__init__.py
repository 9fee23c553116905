"""The older import name of `mini_agentic_rl`.

`import mini_agent_lighting` gives that very package, and every module under this name is the module object of the same
name there, imported when it is asked for; `mini_agentic_rl.compat` finds it.
"""

from __future__ import annotations

import sys

import mini_agentic_rl

sys.modules[__name__] = mini_agentic_rl
