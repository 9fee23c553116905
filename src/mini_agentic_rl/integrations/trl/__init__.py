"""Environments and reward functions that were written for TRL's GRPOTrainer: `TRLEnvironment` and `TRLRewards`.

They do not need TRL.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
