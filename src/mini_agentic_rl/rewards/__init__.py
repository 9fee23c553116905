"""Rewards: scores of replies.

Pure functions of what a model said and what was right, and reward functions made of them, of a judge, of a reward model
and of any callable; the latter are called alike, by TRL, by `RewardHook` and by hand (`base`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
