"""Algorithms: they enqueue rollouts, read their results, and change the resources that agents use.

    base, baseline             the base class; `@algo` makes an algorithm of a function; `Baseline` changes nothing
    reinforcement, loop        training of weights; `loop.py` reads from the first measurement to the last: sampling,
                               staleness, curriculum, expert_prefix, sft, readiness, measure, checkpoint, state
    rollouts, groups, batch    from rollouts to groups, and to one packed row of tokens with advantages
    losses, advantages         functions registered by name, each under its paper and equation; policy_gradient
    grpo, ppo, teachers        `MiniGRPO` and `MiniPPO`: two updates (`objective`) for the loop
    settings, presets, seeds   settings, published variants, and draws that can be repeated

Names whose modules need torch are loaded when they are first used.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
