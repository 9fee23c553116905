"""Algorithms: they enqueue rollouts, read their results, and change the resources that agents use.

    base, baseline             the base class; `@algo` makes an algorithm of a function; `Baseline` changes nothing
    reinforcement, loop        training of weights; `loop.py` reads from the first measurement to the last: tasks,
                               sampling, staleness, expert_prefix, sft, measure, checkpoint, state
    rollouts, groups, batch    from rollouts to groups, and to one packed row of tokens with advantages
    losses, advantages         functions registered by name, each under its paper and equation; policy_gradient
    grpo, ppo                  `MiniGRPO` and `MiniPPO`: two updates (`state.Objective`) for the loop
    settings, presets          settings and published variants

Names whose modules need torch are loaded when they are first used.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
