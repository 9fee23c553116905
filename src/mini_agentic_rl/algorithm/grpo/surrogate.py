"""What each published variant maximises for one term: pure functions of the ratio of two policies.

w = pi(token) / pi_old(token) is the ratio of the policy that is trained to the one that sampled, A the advantage of the
term, lo and hi the bounds of the ratio. Each function returns its objective [S] and marks [S] where the bound cut
something off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .settings import PolicyLoss


@dataclass(frozen=True)
class ClipRange:
    """Where ratios are cut off."""

    low: float
    """1 minus the lower setting."""
    high: float
    """1 plus the upper setting."""


@dataclass(frozen=True)
class Ratios:
    """The policies that are compared, as logarithms [S]."""

    logprobs_S: Tensor
    """log pi, with a gradient."""
    old_logprobs_S: Tensor
    """log pi_old."""
    sequence_log_ratio_S: Tensor | None = None
    """For each term log s of its rollout, under the current weights; needed by `gspo` alone. Without a gradient."""

    @property
    def log_ratio_S(self) -> Tensor:
        """log w."""
        return self.logprobs_S - self.old_logprobs_S


Surrogate = Callable[[Ratios, Tensor, ClipRange], tuple[Tensor, Tensor]]


def clipped_ratio(ratios: Ratios, advantages_S: Tensor, bounds: ClipRange) -> tuple[Tensor, Tensor]:
    """min(w A, clip(w, lo, hi) A) (PPO; Schulman et al. 2017, equation 7; GRPO; Shao et al. 2024, equation 3).

    DAPO (Yu et al. 2025, equation 8) is the same with hi - 1 above 1 - lo, so that unlikely tokens can rise.
    """
    return _clipped(torch.exp(ratios.log_ratio_S), advantages_S, bounds)


def sequence_ratio(ratios: Ratios, advantages_S: Tensor, bounds: ClipRange) -> tuple[Tensor, Tensor]:
    """min(s A, clip(s, lo, hi) A) with the geometric mean of a rollout's ratios (GSPO; Zheng et al. 2025,
    arXiv:2507.18071, equations 5 and 7):

        s = (pi(y) / pi_old(y))^(1/|y|) = exp(1/|y| sum over t of log w_t)

    Computed term by term as GSPO-token (equations 13 and 14), s_t = sg[s] pi_t / sg[pi_t], where sg stops gradients:
    it has the value of s, and where all terms of a rollout have the same advantage and the loss averages over them, its
    gradient too. So terms may be computed apart from each other, and each may have an advantage of its own. |y| counts
    the trained tokens of the rollout, in all its calls.

    Raises:
        ValueError: `sequence_log_ratio_S` is missing.
    """
    if ratios.sequence_log_ratio_S is None:
        raise ValueError("the sequence ratio needs the stream sequence_log_ratio")
    gradient_S = ratios.logprobs_S - ratios.logprobs_S.detach()
    return _clipped(torch.exp(ratios.sequence_log_ratio_S + gradient_S), advantages_S, bounds)


def detached_ratio(ratios: Ratios, advantages_S: Tensor, bounds: ClipRange) -> tuple[Tensor, Tensor]:
    """sg[clip(w, lo, hi)] A log pi (CISPO; MiniMax-M1, arXiv:2506.13585, equations 4 and 5).

    The weight is cut off, the term is not: every token keeps a gradient.
    """
    ratio_S = torch.exp(ratios.log_ratio_S.detach())
    clipped_S = ratio_S.clamp(bounds.low, bounds.high)
    return clipped_S * advantages_S * ratios.logprobs_S, clipped_S != ratio_S


SURROGATES: Mapping[PolicyLoss, Surrogate] = {
    "clip": clipped_ratio,
    "gspo": sequence_ratio,
    "cispo": detached_ratio,
}


def _clipped(ratio_S: Tensor, advantages_S: Tensor, bounds: ClipRange) -> tuple[Tensor, Tensor]:
    free_S = ratio_S * advantages_S
    clipped_S = ratio_S.clamp(bounds.low, bounds.high) * advantages_S
    return torch.minimum(free_S, clipped_S), free_S > clipped_S
