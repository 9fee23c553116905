"""Environments and rollout functions that were written for TRL's GRPOTrainer, as they are.

`TRLEnvironment` is an environment of its `environment_factory`, `RolloutFunctionAgent` runs its `rollout_func`, and
`TRLRewards` are its reward functions. TRL itself need not be installed.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
