"""The math agent: word problems, one calculator, a reward of 1 for the right answer.

`MathAgent` runs rollouts and `MathRewardHook` scores them; `opening`, `use_tool` and `demonstration` define the
conversation. `math_recipe` returns all of it for a job.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
