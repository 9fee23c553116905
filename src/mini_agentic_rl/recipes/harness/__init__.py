"""Harnesses: agents that are commands, run once per rollout in a new folder and a sandbox.

`HarnessAgent` runs a command by its `HarnessSettings`: command, sandbox, limits and reward.
`load_task_folder` reads tasks with files and hidden tests. A function of yours for the reward gets a `HarnessResult`.
"""

from ...compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
