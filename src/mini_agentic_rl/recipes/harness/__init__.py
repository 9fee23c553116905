"""Harnesses: agents that are commands, run once per rollout in a folder and a sandbox of their own.

`HarnessAgent` runs one; `HarnessSettings` say what, where, within which limits, and what it is worth.
`load_task_folder` reads tasks with files and hidden tests. A function of yours for the reward gets a `HarnessResult`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
