"""Learning from use: sessions that were judged become groups, and groups become new weights.

judge those that nobody has (`judging`) -> read the judged ones (`lessons`) -> compare them (`baselines`)
-> claim, one optimizer step, publish, mark (`learner`)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
