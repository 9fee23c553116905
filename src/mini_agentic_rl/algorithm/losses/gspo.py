"""`gspo`: the clipped ratio of each rollout (GSPO; Zheng et al. 2025, arXiv:2507.18071, equations 5 and 7).

    J = min(s A, clip(s, low, high) A),   s = (pi(y) / pi_old(y))^(1/|y|) = exp(1/|y| sum over t of log w_t)

Computed term by term as GSPO-token (equations 13 and 14), s_t = sg[s] pi_t / sg[pi_t], where sg stops gradients: it has
the value of s, and where all terms of a rollout have the same advantage and the loss averages over them, its gradient
too. So terms may be computed apart from each other, and each may have an advantage of its own. |y| counts the trained
tokens of the rollout, in all its calls.
"""

from __future__ import annotations

import numpy as np

from .base import Floats, Ints, LossTerms, PolicyLoss, Surrogate, clipped, trajectory_sum


def sequence_log_ratio(logprobs_S: Floats, old_logprobs_S: Floats, trajectory_S: Ints) -> Floats:
    """Return log s of the rollout of each term [S]: the mean of log w over the rollout's terms."""
    lengths_S = trajectory_sum(np.ones_like(logprobs_S), trajectory_S)
    return np.asarray(trajectory_sum(logprobs_S - old_logprobs_S, trajectory_S) / lengths_S)


def sequence_ratio(terms: LossTerms) -> Surrogate:
    """Return min(s A, clip(s, low, high) A), with the geometric mean s of the ratios of a rollout.

    Raises:
        ValueError: `rollout_S`, log s under the current weights, is missing.
    """
    if terms.rollout_S is None:
        raise ValueError("the ratio of a rollout needs rollout_S, the sequence_log_ratio of all of its terms")
    one_S = terms.logprobs_S - terms.logprobs_S.detach()  # zeros, with the gradient of log pi
    return clipped((terms.rollout_S + one_S).exp(), terms)


LOSS = PolicyLoss(sequence_ratio, over_rollouts=sequence_log_ratio)
