"""Algorithms: what enqueues rollouts, reads what they left, and changes what the agent uses.

    base, decorator, baseline   what an algorithm is; `@algo` makes one of a function; `Baseline` changes nothing
    loop/                       a training with weights: sampling, credit, checkpoints; `Objective` is the update
    losses/                     losses of the policy gradient, one file each, and the published variants
    grpo/, ppo/                 `MiniGRPO` and `MiniPPO`: two objectives for that loop; `grpo/trl_backend/` is a third
    verl/                       `VERL`: a verl configuration, run by one of them
    prompt_search/              prompts instead of weights: the base of `apo/`
    measure                     evaluation alone

Names whose modules need torch are loaded when they are asked for.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
