"""Losses of the policy gradient, and what they share: corrections, KL estimators, aggregation. Needs no torch.

A loss is a pure function of per-token tensors, registered by name:

    @register_loss("reinforce")
    def reinforce(terms: LossInputs) -> Surrogate:
        return Surrogate(terms.advantages_S * terms.logprobs_S)

The setting `policy_loss` takes the name, or `module:function` of a function that is not registered. A term is one
sampled token of one rollout; S is the number of terms. w = pi(token) / pi_old(token) is the ratio of the policy that is
trained to the one that sampled, A the advantage, sg[x] stops gradients. A loss returns the objective J of each term, to
be maximised. It looks at each term by itself, so that a batch can be split into chunks, and it divides by nothing that
depends on the batch: the weights of `term_weights` hold the whole normalisation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import UserError
from ..plugins import OpenChoices, load_object, load_plugin

if TYPE_CHECKING:
    from torch import Tensor

    from ..policy import LossInputs

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])

Stream = Literal["old_logprobs", "reference_logprobs", "entropy_gradient"]
"""Optional inputs of a loss: the learner's own log-probabilities before the first step (one forward pass; without it
pi_old is what the sampler recorded), those of the reference policy (one forward pass), and entropies with a
gradient."""

Aggregation = Literal["token", "sequence", "dr_grpo"]
KLEstimator = Literal["k1", "k2", "k3"]
ImportanceCorrection = Literal["none", "token", "sequence", "icepop"]


@dataclass(frozen=True)
class Surrogate:
    """Output of a loss, term by term."""

    objective_S: Tensor
    """J. The loss is minus the sum of J times the weights of the terms."""
    clipped_S: Tensor | None = None
    """True [S] where a bound changed the gradient; reported as `clip_fraction`. None for a loss without bounds."""


@dataclass(frozen=True)
class PolicyLoss:
    """An entry of `LOSSES`: the function, and its optional inputs."""

    surrogate: Callable[[LossInputs], Surrogate]
    needs: frozenset[Stream] = frozenset()
    over_rollouts: Callable[[Floats, Floats, Ints], Floats] | None = None
    """For a loss over whole rollouts: a function from log pi [S], log pi_old [S] and the number of the rollout of each
    term [S] to one number a term. It is called with all terms of the batch before each optimizer step, without a
    gradient; the loss reads the result as `LossInputs.rollout_S`. None for a loss of single terms."""


LOSSES: dict[str, PolicyLoss] = {}
"""The losses by the names that `policy_loss` takes."""


def register_loss(
    name: str,
    *,
    needs: Collection[Stream] = (),
    over_rollouts: Callable[[Floats, Floats, Ints], Floats] | None = None,
) -> Callable[[F], F]:
    """Register the decorated function as a loss, by the name that the setting `policy_loss` takes.

    Args:
        needs: its optional inputs (`Stream`).
        over_rollouts: see `PolicyLoss`.

    Raises:
        ValueError: another function has that name.
    """

    def register(function: F) -> F:
        refuse_taken(name, function, {known: loss.surrogate for known, loss in LOSSES.items()})
        LOSSES[name] = PolicyLoss(function, frozenset(needs), over_rollouts)
        return function

    return register


def refuse_taken(name: str, function: Any, table: Mapping[str, Any]) -> None:
    """Raise a ValueError if another function has the name. The same function of a reloaded module is no other."""

    def place(value: Any) -> str:
        return f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', value)}"

    if name in table and place(table[name]) != place(function):
        raise ValueError(f"the name {name!r} is taken by {place(table[name])}: choose another one")


def load_function(name: str, setting: str) -> Any:
    """Return the object that `module:function` names.

    Raises:
        UserError: it cannot be imported, or cannot be called.
    """
    try:
        loaded = load_object(name)
    except Exception as error:  # a user's module may fail in any way while it is imported
        raise UserError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}", setting=setting) from error
    if not callable(loaded) and not isinstance(loaded, PolicyLoss):
        raise UserError(f"{name!r} is a {type(loaded).__name__}, not a function", setting=setting)
    return loaded


def is_loss(name: str) -> bool:
    """Return True for a name of `LOSSES`, for `module:function`, and for the name of a plugin's loss; the latter two
    are loaded and added to `LOSSES`.

    Raises:
        UserError: it cannot be loaded, or is no loss.
    """
    if name in LOSSES:
        return True
    if ":" in name:
        loaded = load_function(name, "policy_loss")
        registered = next((loss for loss in LOSSES.values() if loss.surrogate is loaded), None)
        LOSSES[name] = registered or (loaded if isinstance(loaded, PolicyLoss) else PolicyLoss(loaded))
        return True
    loss = load_plugin("losses", name, setting="policy_loss")
    if loss is None:
        return False
    if not isinstance(loss, PolicyLoss):
        raise UserError(f"the plugin's {name!r} is a {type(loss).__name__}, not a PolicyLoss", setting="policy_loss")
    LOSSES[name] = loss
    return True


def find_loss(name: str) -> PolicyLoss:
    """Return a loss by its name, `module:function`, or the name of a plugin.

    Raises:
        UserError: there is none.
    """
    if not is_loss(name):
        raise UserError(f"no loss of the name {name!r}; there are {', '.join(LOSSES)}", setting="policy_loss")
    return LOSSES[name]


def clipped(ratio_S: Tensor, terms: LossInputs) -> Surrogate:
    """Return min(w A, clip(w, low, high) A) for any ratio w."""
    free_S = ratio_S * terms.advantages_S
    bounded_S = ratio_S.clamp(terms.bounds.low, terms.bounds.high) * terms.advantages_S
    return Surrogate(free_S.minimum(bounded_S), free_S > bounded_S)


@register_loss("clip")
def clipped_ratio(terms: LossInputs) -> Surrogate:
    """The clipped ratio of each token (PPO; Schulman et al. 2017, arXiv:1707.06347, equation 7; GRPO; Shao et al. 2024,
    arXiv:2402.03300, equation 3).

        J = min(w A, clip(w, low, high) A)

    DAPO (Yu et al. 2025, arXiv:2503.14476, equation 8) is the same with high - 1 above 1 - low.
    """
    return clipped(terms.log_ratio_S.exp(), terms)


def trajectory_sum(values_S: Floats, trajectory_S: Ints) -> Floats:
    """Return at each term the sum of `values_S` over all terms of its trajectory [S]."""
    return np.asarray(np.bincount(trajectory_S, weights=values_S)[trajectory_S])


def sequence_log_ratio(logprobs_S: Floats, old_logprobs_S: Floats, trajectory_S: Ints) -> Floats:
    """Return log s of the rollout of each term [S]: the mean of log w over the rollout's terms."""
    lengths_S = trajectory_sum(np.ones_like(logprobs_S), trajectory_S)
    return np.asarray(trajectory_sum(logprobs_S - old_logprobs_S, trajectory_S) / lengths_S)


@register_loss("gspo", over_rollouts=sequence_log_ratio)
def sequence_ratio(terms: LossInputs) -> Surrogate:
    """The clipped ratio of each rollout (GSPO; Zheng et al. 2025, arXiv:2507.18071, equations 5 and 7).

        J = min(s A, clip(s, low, high) A),   s = (pi(y) / pi_old(y))^(1/|y|) = exp(1/|y| sum over t of log w_t)

    Computed term by term as GSPO-token (equations 13 and 14), s_t = sg[s] pi_t / sg[pi_t]. It has the value of s, and
    its gradient where all terms of a rollout have the same advantage. |y| counts the trained tokens of all calls.

    Raises:
        ValueError: `rollout_S`, log s under the current weights, is missing.
    """
    if terms.rollout_S is None:
        raise ValueError("the ratio of a rollout needs rollout_S, the sequence_log_ratio of all of its terms")
    zero_S = terms.logprobs_S - terms.logprobs_S.detach()  # zeros, with the gradient of log pi
    return clipped((terms.rollout_S + zero_S).exp(), terms)


@register_loss("cispo")
def detached_ratio(terms: LossInputs) -> Surrogate:
    """The log-probability under a clipped weight (CISPO; MiniMax-M1, arXiv:2506.13585, equations 4 and 5).

        J = sg[clip(w, low, high)] A log pi

    The weight is clipped, the term is not: every token keeps a gradient.
    """
    ratio_S = terms.log_ratio_S.detach().exp()
    weight_S = ratio_S.clamp(terms.bounds.low, terms.bounds.high)
    return Surrogate(weight_S * terms.advantages_S * terms.logprobs_S, weight_S != ratio_S)


@register_loss("dppo_tv")
def total_variation(terms: LossInputs) -> Surrogate:
    """A trust region in total variation in place of a clipped ratio (DPPO; Qi et al. 2026, arXiv:2602.04879, equations
    11 to 13).

        J = M w A
        M = 0 where A > 0 and w > 1, or A < 0 and w < 1, and D > delta; elsewhere 1
        D = |pi(token) - pi_old(token)|

    D is the total variation of the two distributions over (sampled token, all others): a lower bound of that over the
    vocabulary. The ratio says little about it: for a rare token it is far from 1 long before the policy has changed.
    pi_old is the sampler's, unless an importance correction takes the ratio to the learner's.
    """
    ratio_S = terms.log_ratio_S.exp()
    divergence_S = (terms.logprobs_S.detach().exp() - terms.old_logprobs_S.exp()).abs()
    leads_away_S = (ratio_S.detach() - 1) * terms.advantages_S > 0
    masked_S = leads_away_S & (divergence_S > terms.bounds.divergence)
    return Surrogate((ratio_S * terms.advantages_S).masked_fill(masked_S, 0.0), masked_S)


def importance_correction(
    name: str,
    old_logprobs_S: Floats,
    behaviour_logprobs_S: Floats,
    trajectory_S: Ints,
    cap: float,
    floor: float = 0.0,
) -> Floats:
    """Return the importance weight c [S] of each term under the setting `importance_correction`.

    Sampler and learner compute the probabilities of the same weights by different kernels, maybe in different number
    formats, so that the tokens come from pi_sampler while the gradient is that of pi. With
    k = pi_old(token) / pi_sampler(token), where pi_old is what the learner computes before its first step on the batch:

        token      c = min(k, cap)                                 (Yao et al. 2025, "Your efficient RL framework
        sequence   c = min(product of k over the rollout, cap)      secretly brings you off-policy RL training")
        icepop     c = k where floor <= k <= cap, else 0           (IcePop; Ring-1T, arXiv:2510.18855)

    Truncated importance sampling (Ionides 2008) of tokens has a lower variance than that of rollouts and is biased: it
    ignores the earlier tokens. A masked token (c = 0) still counts in the length of its rollout. The ratio that the
    loss clips is then pi / pi_old.

    Args:
        old_logprobs_S: log pi_old.
        behaviour_logprobs_S: log pi_sampler.
        trajectory_S: number of the trajectory of each term.
        cap: `importance_cap`.
        floor: `importance_floor`; only `icepop` reads it.
    """
    log_ratio_S = old_logprobs_S - behaviour_logprobs_S
    if name == "sequence":
        log_ratio_S = trajectory_sum(log_ratio_S, trajectory_S)
    if name != "icepop":
        return np.asarray(np.exp(np.minimum(log_ratio_S, np.log(cap))))
    # Truncated first: the exponential of a log-ratio that is far out of bounds may overflow.
    ratio_S = np.exp(np.minimum(log_ratio_S, np.log(cap) + 1))
    return np.where((ratio_S >= floor) & (ratio_S <= cap), ratio_S, 0.0)


def kl(log_ratio_S: Tensor, estimator: KLEstimator) -> Tensor:
    """Return the estimate [S] of the KL divergence from the reference, to be differentiated as it is written.

    With x = log pi(token) - log pi_ref(token) of a token that pi sampled (Schulman 2020, "Approximating KL
    divergence"):

        k1 = x                 unbiased estimate of KL(pi || pi_ref), of high variance, may be negative
        k2 = x^2 / 2           biased, never negative
        k3 = exp(-x) - 1 + x   unbiased, never negative

    In the loss, on-policy and in expectation, the gradient is

        k1   zero (the mean of grad log pi under pi): it penalises nothing
        k2   that of the reverse KL, KL(pi || pi_ref)
        k3   that of the forward KL, KL(pi_ref || pi): 1 - pi_ref/pi as the weight of grad log pi

    In the reward, k1 is a number without a gradient of its own: beta times the sum of k1 over a rollout's tokens is
    taken off its reward, and the policy gradient of that is the gradient of the reverse KL (as in RLHF by PPO; Ouyang
    et al. 2022, equation 2).
    """
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
        terms_S = trajectory_S == trajectory
        sums_S[terms_S] = np.cumsum(values_S[terms_S][::-1])[::-1]
    return sums_S


def term_weights(lengths: Sequence[int], aggregation: Aggregation, max_length: int) -> npt.NDArray[np.float32]:
    """Return the weight of each term of a trajectory, one entry a trajectory, fixed before the batch is split.

    "token" averages over all tokens of the batch (DAPO; Yu et al. 2025, equation 8), "sequence" over the tokens of a
    trajectory and then over trajectories (GRPO; Shao et al. 2024, equation 3), "dr_grpo" divides by a constant
    (Liu et al. 2025, arXiv:2503.20783, section 3.2).

    Args:
        lengths: number of trained tokens of each trajectory.
        max_length: the constant of `dr_grpo`: the most tokens that a trajectory may sample.

    Raises:
        ValueError: no trajectory has a token.
    """
    sizes = np.asarray(lengths, np.float64)
    if sizes.size == 0 or sizes.sum() == 0:
        raise ValueError("no trajectory has a sampled token")
    if aggregation == "token":
        weights = np.full(sizes.size, 1 / sizes.sum())
    elif aggregation == "sequence":
        weights = 1 / (sizes.size * np.maximum(sizes, 1))
    else:
        weights = np.full(sizes.size, 1 / (sizes.size * max_length))
    return weights.astype(np.float32)


if TYPE_CHECKING:
    PolicyLossName: TypeAlias = str
else:  # the choices that help texts and error messages list
    PolicyLossName = Annotated[Literal[tuple(LOSSES)], OpenChoices(is_loss)]
