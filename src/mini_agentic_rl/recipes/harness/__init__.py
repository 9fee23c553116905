"""Harnesses: agents that are commands, run once per rollout in a folder and a sandbox of their own.

`HarnessAgent` runs one; `HarnessSettings` say what, where, within which limits, and what it is worth.
`load_task_folder` reads tasks with files and hidden tests. A function of yours for the reward gets a `HarnessResult`.
"""

from ...compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
