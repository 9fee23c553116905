"""The loop of a training, for every algorithm alike: measure, warm up, [sample, update]*, measure.

`ReinforcementLearning` is the base of the algorithms, `Objective` what each of them brings along: how the groups of
trajectories of a step become new weights. Names are loaded when they are asked for: settings need no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
