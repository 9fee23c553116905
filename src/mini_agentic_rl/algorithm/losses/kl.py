"""Distance of the policy from the reference, token by token: three estimators, and two places to use them.

With x = log pi(token) - log pi_ref(token) of a token that pi sampled (Schulman 2020, "Approximating KL divergence"):

    k1 = x                 unbiased estimate of KL(pi || pi_ref), of high variance, may be negative
    k2 = x^2 / 2           biased, never negative
    k3 = exp(-x) - 1 + x   unbiased, never negative

What an estimator is worth as a penalty depends on where it stands. *In the loss* it is differentiated as it is written;
on-policy, in expectation, the gradient is

    k1   zero (the mean of grad log pi under pi): it penalises nothing
    k2   that of the reverse KL, KL(pi || pi_ref)
    k3   that of the forward KL, KL(pi_ref || pi): 1 - pi_ref/pi as the weight of grad log pi

*In the reward*, k1 is a number without a gradient of its own: the rollout's reward is less by beta times the sum of k1
over its tokens, and the policy gradient of that is the gradient of the reverse KL (as in RLHF by PPO; Ouyang et al.
2022, equation 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from .base import Floats, Ints

if TYPE_CHECKING:
    from torch import Tensor

KLEstimator = Literal["k1", "k2", "k3"]


def kl(log_ratio_S: Tensor, estimator: KLEstimator) -> Tensor:
    """Return the estimate [S] from x [S], to be differentiated as it is."""
    if estimator == "k1":
        return log_ratio_S
    if estimator == "k2":
        return log_ratio_S.square() / 2
    return (-log_ratio_S).exp() - 1 + log_ratio_S


def sum_to_go(values_S: Floats, trajectory_S: Ints) -> Floats:
    """Return for each term the sum of `values_S` over it and all later terms of its trajectory [S].

    With k1 as the values, r - beta times this is the return of REINFORCE++ (Hu et al. 2025, arXiv:2501.03262):
    A_t = r - beta * sum over i >= t of k1_i. Terms of a trajectory stand in the order in which they were sampled.
    """
    sums_S = np.empty_like(values_S)
    for trajectory in np.unique(trajectory_S):
        own = trajectory_S == trajectory
        sums_S[own] = np.cumsum(values_S[own][::-1])[::-1]
    return sums_S
