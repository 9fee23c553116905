"""The math agent: word problems, one calculator, a reward of 1 for the right answer.

`MathAgent` and `MathRewardHook` are what a trainer runs; `opening`, `use_tool` and `demonstration` its conversation.
`math_recipe` is all of it for a job.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
