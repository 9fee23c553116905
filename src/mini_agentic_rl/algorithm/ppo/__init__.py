"""Mini-PPO: a critic, advantages over the tokens of a rollout, and the update made of them.

Names are loaded when they are asked for: settings and advantages need no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
