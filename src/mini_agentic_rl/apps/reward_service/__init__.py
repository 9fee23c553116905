"""The reward service: a reward model behind HTTP that scores texts of many clients in dynamic batches.

`load_scorer` loads a `RewardModel` from what a person writes, and `ScoreServer` serves it. Both need torch, and are
loaded when they are asked for; the settings are not.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
