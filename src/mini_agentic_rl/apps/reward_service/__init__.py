"""The reward service: a reward model behind HTTP that scores texts of many clients in dynamic batches.

`load_scorer` loads a `RewardModel` by path or name, and `ScoreServer` serves it. Both need torch and are imported
lazily; the settings need no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
