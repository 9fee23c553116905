"""Reward functions: scores of replies, for TRL, for `RewardHook` and for direct calls.

Made from rules, a judge, a reward model, or any callable (`base`). Modules are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
