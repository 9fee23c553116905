"""The interface of a loss: a pure function of the terms of one chunk of a pass. A term is one sampled token.

An algorithm fills in the weights, advantages and other numbers of all terms of a batch. `Learner.forward_backward` cuts
these `LossInputs` into chunks, adds the log-probabilities that it computes, and calls the `Loss` once for each chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .tree_pass import ChunkTerms

_LATER: Any = None
"""Default of the inputs that are filled in later."""


@dataclass(frozen=True)
class ClipRange:
    """Bounds of an update."""

    low: float
    """Lower bound of a ratio: 1 minus the setting `clip_ratio`."""
    high: float
    """Upper bound of a ratio: 1 plus the setting `clip_ratio_high`."""
    divergence: float = math.inf
    """Bound of a divergence: the setting `divergence_bound`."""


@dataclass(frozen=True)
class LossInputs:
    """The inputs of a loss, one number for each of S terms. Those that an algorithm does not need are None."""

    weights_S: Tensor
    """Weight of each term in the loss. It holds the whole normalisation, so the terms of a batch simply add up."""
    advantages_S: Tensor = _LATER
    """Advantages: the return of the call that sampled the token, less the expected one."""
    old_logprobs_S: Tensor = _LATER
    """Log-probabilities under the weights before the first step; None takes those that the sampler recorded."""
    correction_S: Tensor | None = None
    """Importance weights between sampler and learner; None is 1."""
    reference_logprobs_S: Tensor | None = None
    """Log-probabilities under the reference policy."""
    rollout_S: Tensor | None = None
    """A number that a loss computed from all terms of a rollout together, repeated at each of them."""
    old_values_S: Tensor | None = None
    """Values of the critic before the first step."""
    returns_S: Tensor | None = None
    """Returns that the critic is trained towards."""
    observation_weights_S: Tensor | None = None
    """Weights in the cross-entropy of the environment's tokens; 0 at all other terms."""
    demonstration_weights_S: Tensor | None = None
    """Weights in the cross-entropy of demonstrations; 0 at all other terms."""
    on_policy_S: Tensor | None = None
    """On-policy mask: 1 where the weights before the first step sampled the token; None where they sampled all."""
    teacher_tokens_SK: Tensor | None = None
    """The K most likely tokens of a teacher in the state of each term [S, K]."""
    teacher_logprobs_SK: Tensor | None = None
    """Their log-probabilities under the teacher [S, K]; without `teacher_tokens_SK` those of all tokens [S, V]."""

    logprobs_S: Tensor = _LATER
    """Computed by the pass: log-probabilities under the current weights, with a gradient."""
    behaviour_logprobs_S: Tensor = _LATER
    """Filled in by the pass: log-probabilities that the sampler recorded."""
    entropy_S: Tensor = _LATER
    """Computed by the pass: entropy (nats) of the distribution that each token was drawn from, under the current
    weights; with a gradient only under `forward_backward(entropy_gradient=True)`."""
    values_S: Tensor | None = None
    """Computed by the pass of a learner with a critic: the return expected from the state before each token, with a
    gradient."""
    teacher_kl_S: Tensor | None = None
    """Computed by the pass where there is a teacher: KL(pi || teacher) in the state of each token (`head.teacher_kl`),
    with a gradient."""

    bounds: ClipRange = ClipRange(0.8, 1.2)
    """Bounds at which a loss clips ratios, or masks terms."""

    @property
    def log_ratio_S(self) -> Tensor:
        """log w = log pi - log pi_old."""
        return self.logprobs_S - self.old_logprobs_S

    def select(self, terms_N: Any, device: torch.device | None = None) -> LossInputs:
        """Return the inputs of some terms, given by their indices [N], on `device` or where they are."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        selected: dict[str, Any] = {name: value[terms_N].to(device=device) for name, value in tensors.items()}
        return replace(self, **selected)


@dataclass(frozen=True)
class LossOutputs:
    """A loss to differentiate, and metrics to report; both add up over chunks."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


Loss = Callable[[LossInputs], LossOutputs]
"""A pure function of the terms of one chunk. Losses and metrics of chunks are added up, so it divides by nothing that
depends on the number of terms: `LossInputs.weights_S` hold the normalisation."""


class SeenTerms:
    """Log-probabilities and entropies that a pass computed for each term of a pack; NaN where it computed none.

    Args:
        count: number of the pack's terms.
    """

    def __init__(self, count: int) -> None:
        self.logprobs_S = np.full(count, np.nan, np.float32)
        """Log-probabilities under the weights of the pass."""
        self.entropy_S = np.full(count, np.nan, np.float32)
        """Entropies (nats) of the distributions that the tokens were drawn from."""

    def take(self, chunk: ChunkTerms) -> None:
        """Store the numbers of a chunk's terms."""
        self.logprobs_S[chunk.terms_N] = chunk.logprobs_N.detach().float().cpu().numpy()
        self.entropy_S[chunk.terms_N] = chunk.entropy_N.detach().float().cpu().numpy()

    def take_part(self, terms_N: Any, part: SeenTerms) -> None:
        """Store the numbers of some terms, given by their indices."""
        self.logprobs_S[terms_N], self.entropy_S[terms_N] = part.logprobs_S, part.entropy_S

    def join(self, other: SeenTerms) -> None:
        """Take over the numbers of terms that another rank has computed."""
        np.fmax(self.logprobs_S, other.logprobs_S, out=self.logprobs_S)  # the one that is not NaN
        np.fmax(self.entropy_S, other.entropy_S, out=self.entropy_S)
