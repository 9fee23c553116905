"""The interface of a loss: a pure function of the terms of one chunk of a pass.

A term is one sampled token of one trajectory. `TermStreams` are the numbers that an algorithm computed before the pass,
`LossInputs` adds what the pass computes. `Learner.forward_backward` calls a `Loss` once for each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .tree_pass import ChunkTerms


@dataclass(frozen=True)
class TermStreams:
    """Numbers that an algorithm computed for each term before the pass, all [S]; None where its loss needs none."""

    weights_S: Tensor
    """Weight of each term in the loss: its whole normalisation, so that the terms of a batch simply add up."""
    advantages_S: Tensor | None = None
    """Advantages: the return of the call that sampled the token, over the expected one."""
    old_logprobs_S: Tensor | None = None
    """Log-probabilities under the learner's own weights before the first step; None takes those of the sampler."""
    correction_S: Tensor | None = None
    """Importance weights between sampler and learner; None weighs nothing."""
    reference_logprobs_S: Tensor | None = None
    """Log-probabilities under the reference: the weights without the adapter."""
    rollout_S: Tensor | None = None
    """A number that a loss computed from all terms of a trajectory together, repeated at each of them."""
    old_values_S: Tensor | None = None
    """Values that the critic gave before the first step."""
    returns_S: Tensor | None = None
    """Returns that the critic is trained towards."""
    observation_weights_S: Tensor | None = None
    """Weights in the cross-entropy of the environment's tokens; 0 at all other terms."""
    demonstration_weights_S: Tensor | None = None
    """Weights in the cross-entropy of demonstrations; 0 at all other terms."""
    current_S: Tensor | None = None
    """On-policy mask: 1 where the weights before the first step sampled the token, 0 where older ones did; None where
    all are on-policy."""
    teacher_tokens_SK: Tensor | None = None
    """The tokens that a teacher finds most likely in the state of each term [S, K]."""
    teacher_logprobs_SK: Tensor | None = None
    """Their log-probabilities under the teacher [S, K]; without `teacher_tokens_SK` those of all tokens [S, V]."""

    def select(self, terms_N: Any, device: torch.device | None = None) -> TermStreams:
        """Return the streams of some terms, given by their numbers [N], on `device` or where they are."""
        streams = {name: stream for name, stream in vars(self).items() if stream is not None}
        return replace(self, **{name: stream[terms_N].to(device=device) for name, stream in streams.items()})


@dataclass(frozen=True)
class LossInputs:
    """The inputs of a loss, all [S], S being the terms of one chunk."""

    logprobs_S: Tensor
    """Log-probabilities under the current weights, with a gradient."""
    behaviour_logprobs_S: Tensor
    """Log-probabilities that the sampler recorded."""
    entropy_S: Tensor
    """Entropy (nats) of the distribution each token was drawn from, under the current weights; with a gradient only
    under `forward_backward(entropy_gradient=True)`."""
    streams: TermStreams
    """Numbers that the algorithm computed before: weights, advantages, reference log-probabilities ..."""
    values_S: Tensor | None = None
    """Return expected from the state before each token on, with a gradient; None for a learner without a critic."""
    teacher_kl_S: Tensor | None = None
    """Divergence KL(pi || teacher) in the state of each token (`head.teacher_kl`), with a gradient; None without a
    teacher."""


@dataclass(frozen=True)
class LossOutputs:
    """A loss to differentiate, and metrics to report; both add up over chunks."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


Loss = Callable[[LossInputs], LossOutputs]
"""A pure function of the terms of one chunk. As losses and metrics of chunks are added up, it divides by nothing that
depends on how many terms there are: `TermStreams.weights_S` hold the normalisation."""


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
