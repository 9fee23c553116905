"""The base of all losses of the policy gradient: a pure function of the terms of a batch, and what it has to be given.

A term is one sampled token of one rollout. w = pi(token) / pi_old(token) is the ratio of the policy that is trained to
the one that sampled, A the advantage of the term. Tensors are used by their methods alone, so that the table of losses,
and every setting that chooses from it, is there without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import WrapValidator

if TYPE_CHECKING:
    from torch import Tensor

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

Stream = Literal["old_logprobs", "reference_logprobs", "entropy_gradient"]
"""Streams that a loss may need and that cost something: a forward pass for the learner's own log-probabilities before
the first step (without it pi_old is what the sampler recorded), one for those of the weights without the adapter, and
entropies with a gradient."""


@dataclass(frozen=True)
class ClipRange:
    """Bounds of what an update may change."""

    low: float
    """Lower bound of a ratio: 1 minus the setting `clip_ratio`."""
    high: float
    """Upper bound of a ratio: 1 plus the setting `clip_ratio_high`."""
    divergence: float = math.inf
    """Bound of a divergence: the setting `divergence_bound`."""


@dataclass(frozen=True)
class LossTerms:
    """Some terms of a batch, all [S], from which a loss is computed. Splitting a batch changes nothing."""

    logprobs_S: Tensor
    """log pi, with a gradient."""
    old_logprobs_S: Tensor
    """log pi_old."""
    advantages_S: Tensor
    """A."""
    entropy_S: Tensor
    """Entropy (nats) of the distribution each token was drawn from; with a gradient where the loss needs it."""
    bounds: ClipRange
    """Bounds at which ratios are cut off, or terms masked."""
    reference_logprobs_S: Tensor | None = None
    """log pi_ref, where the loss needs it."""
    rollout_S: Tensor | None = None
    """The numbers that `PolicyLoss.over_rollouts` computed, at each term of a rollout."""

    @property
    def log_ratio_S(self) -> Tensor:
        """log w."""
        return self.logprobs_S - self.old_logprobs_S


@dataclass(frozen=True)
class Surrogate:
    """The objective of a loss, term by term."""

    objective_S: Tensor
    """J, to be maximised: its mean under the weights of the terms is the loss with the sign turned."""
    clipped_S: Tensor | None = None
    """Marks [S] of the terms whose gradient a bound changed; reported as `clip_fraction`. None for no bound."""


@dataclass(frozen=True)
class PolicyLoss:
    """A loss of the table `LOSSES`: the function, and what it has to be given."""

    surrogate: Callable[[LossTerms], Surrogate]
    needs: frozenset[Stream] = frozenset()
    """Streams that have to be computed for it."""
    over_rollouts: Callable[[Floats, Floats, Ints], Floats] | None = None
    """For a loss that looks at all terms of a rollout together: (log pi, log pi_old, number of its rollout) of every
    term of the batch in, one number for each term out; computed before each optimizer step, without a gradient, and
    given as `LossTerms.rollout_S`. None for a loss of single terms."""


def clipped(ratio_S: Tensor, terms: LossTerms) -> Surrogate:
    """Return min(w A, clip(w, low, high) A) for any ratio w."""
    free_S = ratio_S * terms.advantages_S
    bounded_S = ratio_S.clamp(terms.bounds.low, terms.bounds.high) * terms.advantages_S
    return Surrogate(free_S.minimum(bounded_S), free_S > bounded_S)


def trajectory_sum(values_S: Floats, trajectory_S: Ints) -> Floats:
    """Return at each term the sum of `values_S` over all terms of its trajectory [S]."""
    return np.asarray(np.bincount(trajectory_S, weights=values_S)[trajectory_S])


def key_of(is_known: Callable[[str], bool]) -> WrapValidator:
    """Return a validator that also takes names which became known after the choices were listed."""
    return WrapValidator(lambda value, handler: value if isinstance(value, str) and is_known(value) else handler(value))
