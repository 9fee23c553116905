"""Truncated importance correction: sampled by one program, trained by another.

The sampler and the learner compute the same weights' probabilities by different kernels, maybe in different number
formats, so that the tokens come from pi_sampler while the gradient is that of pi. Truncated importance sampling (Yao et
al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; the truncation is that of Ionides
2008) weighs each term by

    token       min(pi_old(token) / pi_sampler(token), C)
    sequence    min(product over the rollout's tokens of that ratio, C)

where pi_old is what the *learner* computes before its first step on the batch. The ratio that is clipped is then
pi / pi_old, free of numerical mismatch. The token form has the lower variance and is biased, since it leaves out how
the earlier tokens came about; the sequence form is unbiased up to the truncation.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from .base import Floats, Ints, trajectory_sum

ImportanceCorrection = Literal["none", "token", "sequence"]


def importance_correction(
    level: Literal["token", "sequence"],
    old_logprobs_S: Floats,
    behaviour_logprobs_S: Floats,
    trajectory_S: Ints,
    cap: float,
) -> Floats:
    """Return min(pi_old / pi_sampler, C) of each term, or of the whole trajectory at each of its terms [S].

    Args:
        trajectory_S: number of the trajectory of each term.
        cap: C.
    """
    log_ratio_S = old_logprobs_S - behaviour_logprobs_S
    if level == "sequence":
        log_ratio_S = trajectory_sum(log_ratio_S, trajectory_S)
    return np.exp(np.minimum(log_ratio_S, np.log(cap)))
