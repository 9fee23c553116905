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

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def token_correction(old_logprobs_S: Floats, behaviour_logprobs_S: Floats, cap: float) -> Floats:
    """min(pi_old / pi_sampler, C) for each term [S]."""
    return np.exp(np.minimum(old_logprobs_S - behaviour_logprobs_S, np.log(cap)))


def sequence_correction(old_logprobs_S: Floats, behaviour_logprobs_S: Floats, trajectory_S: Ints, cap: float) -> Floats:
    """min(product over a trajectory of pi_old / pi_sampler, C), at each of its terms [S]."""
    log_ratio_S = trajectory_sum(old_logprobs_S - behaviour_logprobs_S, trajectory_S)
    return np.exp(np.minimum(log_ratio_S, np.log(cap)))


def sequence_log_ratio(logprobs_S: Floats, old_logprobs_S: Floats, trajectory_S: Ints) -> Floats:
    """1/|y| sum over a trajectory's terms of log(pi / pi_old), at each of its terms [S]: the logarithm of the ratio
    that GSPO clips (see `surrogate.sequence_ratio`)."""
    lengths_S = trajectory_sum(np.ones_like(logprobs_S), trajectory_S)
    return np.asarray(trajectory_sum(logprobs_S - old_logprobs_S, trajectory_S) / lengths_S)


def trajectory_sum(values_S: Floats, trajectory_S: Ints) -> Floats:
    """At each term the sum of `values_S` over all terms of its trajectory [S]."""
    return np.asarray(np.bincount(trajectory_S, weights=values_S)[trajectory_S])
