"""Environments and recipes, which jobs train.

`Environment` is the protocol of a world with tasks, `EnvironmentAgent` the agent that a trainer runs in one, and
`Episodes` the base class of families of tasks with turns. A `Recipe` is an agent with its rewards and demonstrations.
`load_recipe`, `load_tasks` and `load_environment` find them by name: in the recipes of this package, in plugins, or in
modules of the user. `find_llm`, `rollout_client`, … give agents access to the model.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
