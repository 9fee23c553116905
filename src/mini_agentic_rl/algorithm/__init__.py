"""Algorithms: they enqueue rollouts, read their results, and change the resources that agents use.

    base, baseline             the base class; `@algo` makes an algorithm of a function; `Baseline` changes nothing
    losses, advantages         functions registered by name, each under its paper and equation; presets, settings
    loop                       a training with weights: sampling, groups, checkpoints; begin here
    grpo, ppo                  `MiniGRPO` and `MiniPPO`: two updates for that loop
    measure, rollouts          evaluation alone; running rollouts and reading their results

Names whose modules need torch are loaded when they are first used.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
