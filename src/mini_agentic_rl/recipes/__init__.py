"""Recipes: agents with their tasks and rewards, a folder each. Every folder can be deleted.

`math`, `sql`, `units`, `games`, `retrieval` and `reasoning_gym` offer task families by name (entry points of the group
`mini_agentic_rl.recipes`); `tau2` and `gaia` are agents for published benchmarks; `harness` runs any command as an
agent. The agents are ordinary client code, trained through its `base_url`. No torch here.
"""

from functools import partial

from ..compat import find_elsewhere

__getattr__ = partial(find_elsewhere, __name__)
