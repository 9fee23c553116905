"""Advantages: how much better a rollout did than expected. Pure functions, numpy only.

An advantage is a function of the rewards of one group, registered by name:

    @register_advantage("median")
    def over_median(rewards):
        return rewards - np.median(rewards, axis=0)

The setting `baseline` takes the name, or `module:function` of a function that is not registered. The rewards are [G],
one number a rollout, or [G, C] where single calls have rewards of their own (`groups.py`): the numbers of one
column are compared with each other. The result has the same shape. It is then divided as `advantage_normalization`
says, unless `normalize_advantage` is off; a group of equal rewards is left out of the update.

Shao et al. 2024 (section 4.1.3, process supervision) subtract one mean and divide by one standard deviation over all
step rewards of a group. Here the standard deviation is one for the group as well, so that a turn that matters little
stays small, but the mean is that of the turn (as Zeng et al. 2025, arXiv:2505.11821): with one mean for all, a turn
that always earns more than another would be reinforced though every rollout earned it alike.

The second half of the file has the advantages over time of PPO. Time counts the trained tokens of a rollout, call after
call; what tools, users and templates write in between takes no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import numpy as np

from ..errors import UserError
from ..plugins import OpenChoices
from .losses import F, Floats, load_function, refuse_taken

Advantage = Callable[[Floats], Floats]
"""Function from the rewards [G] or [G, C] of one group to advantages of the same shape."""
Normalization = Literal["group", "batch", "mean"]
"""Divisor of advantages: a standard deviation, of the group or of the batch, or the mean of the group's rewards."""

ADVANTAGES: dict[str, Advantage] = {}
"""The advantages by the names that `baseline` takes."""
EPSILON = 1e-6
"""Keeps the division by the standard deviation finite (1e-4 in some implementations)."""


def register_advantage(name: str) -> Callable[[F], F]:
    """Register the decorated function as an advantage, by the name that the setting `baseline` takes.

    Raises:
        ValueError: another function has that name.
    """

    def register(function: F) -> F:
        refuse_taken(name, function, ADVANTAGES)
        ADVANTAGES[name] = function
        return function

    return register


def is_advantage(name: str) -> bool:
    """Return True for a name of `ADVANTAGES`, and for `module:function`, which is loaded and added to them.

    Raises:
        UserError: it cannot be loaded.
    """
    if name not in ADVANTAGES and ":" in name:
        ADVANTAGES[name] = load_function(name, "baseline")
    return name in ADVANTAGES


@register_advantage("group")
def group_centred(rewards: Floats) -> Floats:
    """Return r - mean over the group: without the standard deviation, easy and hard tasks weigh alike (Dr. GRPO;
    Liu et al. 2025, section 3.2). For [G, C] each column has its own mean."""
    centred = rewards - rewards.mean(axis=0)
    return np.asarray(np.where(np.ptp(rewards, axis=0) > 0, centred, 0.0))


@register_advantage("leave_one_out")
def leave_one_out(rewards: Floats) -> Floats:
    """Return r_i - 1/(G-1) sum over j != i of r_j (RLOO; Kool et al. 2019, Ahmadian et al. 2024, arXiv:2402.14740).

    As a rollout's own reward is not part of its baseline, the policy gradient is unbiased. It is G/(G-1) times what
    `group_centred` gives. Zeros for a single rollout.
    """
    size = rewards.shape[0]
    return np.asarray(group_centred(rewards) * (size / max(1, size - 1)))


@register_advantage("none")
def uncompared(rewards: Floats) -> Floats:
    """Return the rewards themselves (REINFORCE without a baseline; REINFORCE++ normalises them over the batch)."""
    return rewards


def group_normalized(rewards: Floats) -> Floats:
    """Return (r - mean) / std over the group (GRPO; Shao et al. 2024, section 4.1.2). Zeros when all rewards are equal.

    For [G, C]: std is the root mean square over all entries of what is left after each column's mean was subtracted.
    """
    return over_deviation(group_centred(rewards), rewards)


def over_deviation(centred: Floats, rewards: Floats) -> Floats:
    """Return `centred` over the standard deviation of the group's rewards; for [G, C] one for all columns."""
    if not np.any(centred):
        return centred
    return np.asarray(centred / (np.sqrt(rewards.var(axis=0).mean()) + EPSILON))


def over_mean(centred: Floats, rewards: Floats) -> Floats:
    """Return the advantages of maximum-likelihood reinforcement learning (MaxRL; Tajwar, Zeng et al. 2026,
    arXiv:2602.02710, algorithm 1); for [G, C] with one mean for all columns.

        A_i = (r_i - mean(r)) / mean(r),    0 where the mean is 0

    Of N rollouts with rewards of 0 or 1, the mean of A times the gradient of log pi estimates the gradient of log p up
    to terms of order N in 1 - p, p being the probability of success; the policy gradient estimates that of p. So hard
    tasks weigh more than with a standard deviation. Without a baseline A is r / mean(r): the mean of the gradients over
    the successes (theorem 2). The paper means rewards of 0 and 1. Where some are negative (a penalty was taken off), A
    is clipped to [-N, N], and a mean that is not positive gives zeros.
    """
    mean = float(rewards.mean())
    if mean <= 0:
        return np.zeros_like(centred)
    return np.asarray(np.clip(centred / mean, -rewards.size, rewards.size))


SCALES: Mapping[Normalization, Callable[[Floats, Floats], Floats]] = {
    "group": over_deviation,
    "mean": over_mean,
    "batch": lambda centred, rewards: centred,  # `batch_normalized` divides all groups together
}
"""Functions from (advantages, rewards) of a group to scaled advantages, by the setting `advantage_normalization`."""


def advantage_of(baseline: str, normalization: Normalization | None) -> Advantage:
    """Return the function from the rewards of a group to its advantages, for the settings `baseline` and
    `advantage_normalization`; a normalization of None divides by nothing."""
    if not is_advantage(baseline):
        raise UserError(f"no advantage of the name {baseline!r}; there are {', '.join(ADVANTAGES)}", setting="baseline")
    if normalization is None or (baseline == "none" and normalization == "group"):
        # Without a baseline the rewards are not centred, so their standard deviation around the mean is no scale.
        return lambda rewards: _compare(baseline, rewards)
    scale = SCALES[normalization]
    return lambda rewards: scale(_compare(baseline, rewards), rewards)


def _compare(baseline: str, rewards: Floats) -> Floats:
    advantages = np.asarray(ADVANTAGES[baseline](rewards), np.float64)
    if advantages.shape != rewards.shape:
        raise UserError(
            f"{baseline!r} returned advantages of shape {advantages.shape} for rewards of shape {rewards.shape}",
            setting="baseline",
        )
    return advantages


def batch_normalized(advantages_S: Floats, weights_S: Floats) -> Floats:
    """Return (A - mean) / std over all terms of the batch (global advantage normalisation of REINFORCE++; Hu et al.
    2025, arXiv:2501.03262): A_norm = (A - mean(A)) / std(A), with A over the tokens of the batch.

    The mean is weighed as in the loss: `weights_S` are the weights of the terms [S]. Zeros when all advantages are
    equal.
    """
    weight_S = weights_S / weights_S.sum()
    centred_S = advantages_S - (weight_S * advantages_S).sum()
    if np.ptp(advantages_S) == 0:
        return np.zeros_like(advantages_S)
    return np.asarray(centred_S / (np.sqrt((weight_S * centred_S**2).sum()) + EPSILON))


def separate_advantages(rewards_GK: Floats, weights_K: Floats) -> Floats:
    """Return A [G] of the rollouts of one group from several rewards [G, K] (GDPO; Liu et al. 2026, arXiv:2601.05242,
    equations 4 to 6).

        A_k  = (r_k - mean of r_k over the group) / std of r_k over the group    for each reward k
        A    = sum over k of w_k A_k
        A'   = (A - mean of A over the batch) / std of A over the batch

    If rewards are summed first, 0 + 1 and 1 + 0 are one number; here each reward counts in units of its own spread.
    The last line is `advantage_normalization=batch`.
    """
    columns = [group_normalized(rewards_GK[:, k]) for k in range(rewards_GK.shape[1])]
    return np.asarray(np.stack(columns, axis=1) @ weights_K)


_WHITEN_EPSILON = 1e-8


def generalized_advantages(
    rewards_S: Floats, values_S: Floats, lengths: Sequence[int], *, gamma: float, gae_lambda: float
) -> Floats:
    """Return generalized advantage estimates (Schulman et al. 2016, arXiv:1506.02438, equation 16), [S].

        A_t = sum_{l >= 0} (gamma lambda)^l delta_{t+l},   delta_t = r_t + gamma V(s_{t+1}) - V(s_t)

    with V = 0 after the last token of a trajectory. lambda = 1 is the discounted return minus the value, lambda = 0 the
    one-step error.

    Args:
        rewards_S: r_t, the reward of each token.
        values_S: V(s_t), of the state that each token was sampled in.
        lengths: terms of each trajectory, S in all; the terms of one trajectory are contiguous.
    """
    starts = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
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
    return np.asarray(centred / (centred.std() + _WHITEN_EPSILON))


def explained_variance(values_S: Floats, returns_S: Floats) -> float:
    """Return 1 - Var(return - value) / Var(return): 1 for a perfect critic, 0 for one that predicts the mean, below 0
    for a worse one. 0 where all returns are equal."""
    variance = returns_S.var()
    return 0.0 if variance < _WHITEN_EPSILON else float(1 - (returns_S - values_S).var() / variance)


if TYPE_CHECKING:
    AdvantageName: TypeAlias = str
else:  # the choices that help texts and error messages list
    AdvantageName = Annotated[Literal[tuple(ADVANTAGES)], OpenChoices(is_advantage)]
