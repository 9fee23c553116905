"""The interface of a loss: numbers of each term that an algorithm computed before, what a pass adds, what comes out.

A term is one sampled token of one trajectory. `Learner.forward_backward` calls a `Loss` once for each chunk of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .tree_pass import ChunkTerms


@dataclass(frozen=True)
class TermStreams:
    """Numbers that an algorithm computed for each term before the pass, all [S]; None where its loss asks for none."""

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
    """Weights in the cross-entropy of what the environment said; 0 at all other terms."""
    demonstration_weights_S: Tensor | None = None
    """Weights in the cross-entropy of demonstrations; 0 at all other terms."""
    current_S: Tensor | None = None
    """1 for terms that the weights sampled as they are before the first step, 0 for those of older ones; None where all
    are meant to be current."""
    teacher_tokens_SK: Tensor | None = None
    """The tokens that a teacher finds likeliest in the state of each term [S, K]."""
    teacher_logprobs_SK: Tensor | None = None
    """Their log-probabilities under the teacher [S, K]; without `teacher_tokens_SK` those of all tokens [S, V]."""

    def select(self, terms_N: Any, device: torch.device | None = None) -> TermStreams:
        """Return the streams of some terms, given by their numbers [N], on `device` or where they are."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(
            self, **{name: v_S[terms_N].to(device=device) for name, v_S in values.items() if v_S is not None}
        )


@dataclass(frozen=True)
class LossInputs:
    """The inputs of a loss, all [S], S being the terms of one chunk."""

    logprobs_S: Tensor
    """Log-probabilities under the current weights, with a gradient."""
    behaviour_logprobs_S: Tensor
    """Log-probabilities that the sampler recorded."""
    entropy_S: Tensor
    """Entropy (nats) of the distribution each token was drawn from, under the current weights; with a gradient only
    where `forward_backward` was asked for it."""
    streams: TermStreams
    """Numbers that the algorithm computed before: weights, advantages, reference log-probabilities ..."""
    values_S: Tensor | None = None
    """Return expected from the state before each token on, with a gradient; None for a learner without a critic."""
    teacher_kl_S: Tensor | None = None
    """Divergence KL(pi || teacher) in the state of each token (`teacher_kl.py`), with a gradient; None where the
    streams have no teacher."""


@dataclass(frozen=True)
class LossOutputs:
    """A loss to differentiate, and metrics to report; both add up over chunks."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


Loss = Callable[[LossInputs], LossOutputs]
"""A pure function of the terms of one chunk. As losses and metrics of chunks are added up, it divides by nothing that
depends on how many terms there are: `TermStreams.weights_S` hold the normalisation."""


class SeenTerms:
    """Numbers that a pass found at each term of a pack; NaN where it has not computed them.

    Args:
        count: number of the pack's terms.
    """

    def __init__(self, count: int) -> None:
        self.logprobs_S = np.full(count, np.nan, np.float32)
        """Log-probabilities under the weights of the pass."""
        self.entropy_S = np.full(count, np.nan, np.float32)
        """Entropies (nats) of the distributions that the tokens were drawn from."""

    def take(self, chunk: ChunkTerms) -> None:
        """Note what was found at the terms of a chunk."""
        self.logprobs_S[chunk.terms_N] = chunk.logprobs_N.detach().float().cpu().numpy()
        self.entropy_S[chunk.terms_N] = chunk.entropy_N.detach().float().cpu().numpy()

    def take_part(self, terms_N: Any, part: SeenTerms) -> None:
        """Note what was found at some terms, given by their numbers."""
        self.logprobs_S[terms_N], self.entropy_S[terms_N] = part.logprobs_S, part.entropy_S
