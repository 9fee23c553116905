"""Advantages over time: the rewards beyond what a critic expected. Pure functions, numpy only.

Time counts the trained tokens of a rollout: its sampled tokens, call after call. What tools, users and templates write
in between is not sampled and takes no time: the last token of a call is followed by the first one of the next call.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..losses.base import Floats

EPSILON = 1e-8
"""Keeps the division by the standard deviation finite."""


def generalized_advantages(
    rewards_S: Floats, values_S: Floats, lengths: Sequence[int], *, gamma: float, gae_lambda: float
) -> Floats:
    """Return generalized advantage estimates (Schulman et al. 2016, arXiv:1506.02438, equation 16), [S].

        A_t = sum_{l >= 0} (gamma lambda)^l delta_{t+l},   delta_t = r_t + gamma V(s_{t+1}) - V(s_t)

    with V = 0 after the last token of a trajectory. lambda = 1 is the discounted return minus the value, lambda = 0 the
    one-step error.

    Args:
        rewards_S: r_t, what each token earned.
        values_S: V(s_t), of the state that each token was sampled in.
        lengths: terms of each trajectory; they stand one after the other.

    Raises:
        ValueError: the lengths do not add up to S.
    """
    starts = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
    if not starts[-1] == rewards_S.size == values_S.size:
        raise ValueError(f"{rewards_S.size} rewards and {values_S.size} values for {starts[-1]} terms")
    advantages_S = np.zeros(rewards_S.size, np.float64)
    sizes_N = np.diff(starts)
    next_value_N = np.zeros(sizes_N.size, np.float64)
    next_advantage_N = np.zeros(sizes_N.size, np.float64)
    for back in range(1, int(sizes_N.max(initial=0)) + 1):  # from the ends, all trajectories together
        going = np.flatnonzero(sizes_N >= back)
        at = starts[1:][going] - back
        delta = rewards_S[at] + gamma * next_value_N[going] - values_S[at]
        advantages_S[at] = delta + gamma * gae_lambda * next_advantage_N[going]
        next_value_N[going] = values_S[at]
        next_advantage_N[going] = advantages_S[at]
    return advantages_S


def whiten(values_S: Floats) -> Floats:
    """Return (x - mean) / std over all terms of a batch; zeros where all are equal."""
    centred = values_S - values_S.mean()
    return np.asarray(centred / (centred.std() + EPSILON))


def explained_variance(values_S: Floats, returns_S: Floats) -> float:
    """Return 1 - Var(return - value) / Var(return): 1 for a critic that foresees all, 0 for one that knows the mean
    alone, below 0 for a worse one. 0 where all returns are equal, of which nothing can be explained."""
    variance = returns_S.var()
    return 0.0 if variance < EPSILON else float(1 - (returns_S - values_S).var() / variance)
