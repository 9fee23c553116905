"""The GRPO loss: a pure function from per-term streams to one number and its metrics.

A term is one sampled token of one rollout. Its weight, fixed before the batch is split, holds the whole normalisation,
so the chunks of a batch simply add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from mini_agentic_rl.policy import LossInputs, LossOutputs

Aggregation = Literal["token", "sequence", "dr_grpo"]
KLEstimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True)
class GRPOLoss:
    """Clipped surrogate with an optional KL penalty.

    Per term, with ratio w = exp(logprob - behaviour_logprob) and advantage A (Shao et al. 2024, equation 3):

        -min(w A, clip(w, 1 - clip_low, 1 + clip_high) A) + kl_coef * KL

    The KL penalty against the adapter-off reference is differentiated as written. k1 = log w_ref has the gradient of a
    constant in expectation, k2 = (log w_ref)^2 / 2 has the gradient of the reverse KL, and k3 = exp(-log w_ref) - 1 +
    log w_ref (Schulman 2020) that of the forward KL, all on-policy; log w_ref = logprob - reference_logprob.

    Streams: `advantages` [S], `weights` [S], and `reference_logprobs` [S] when `kl_coef` > 0. Metrics are weighted sums
    over terms, and `weight` the sum of the weights: dividing by it after all chunks gives means.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.0
    kl_estimator: KLEstimator = "k3"

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        weights_S = inputs.streams["weights"]
        advantages_S = inputs.streams["advantages"]
        log_ratio_S = inputs.logprobs_S - inputs.behaviour_logprobs_S
        ratio_S = torch.exp(log_ratio_S)
        clipped_S = ratio_S.clamp(1 - self.clip_low, 1 + self.clip_high)
        surrogate_S = torch.minimum(ratio_S * advantages_S, clipped_S * advantages_S)
        loss = -(weights_S * surrogate_S).sum()
        metrics = {
            "weight": weights_S.sum(),
            "entropy": (weights_S * inputs.entropy_S).sum(),
            "clip_fraction": (weights_S * (ratio_S * advantages_S > clipped_S * advantages_S)).sum(),
            "mismatch/mean_abs": (weights_S * log_ratio_S.abs()).sum(),
            "mismatch/kl": (weights_S * (ratio_S - 1 - log_ratio_S)).sum(),
        }
        if self.kl_coef > 0:
            kl_S = _kl(inputs.logprobs_S - inputs.streams["reference_logprobs"], self.kl_estimator)
            kl = (weights_S * kl_S).sum()
            loss = loss + self.kl_coef * kl
            metrics["kl"] = kl
        return LossOutputs(loss, {name: value.detach() for name, value in metrics.items()})


def _kl(log_ratio_S: torch.Tensor, estimator: KLEstimator) -> torch.Tensor:
    if estimator == "k1":
        return log_ratio_S
    if estimator == "k2":
        return log_ratio_S.square() / 2
    return torch.exp(-log_ratio_S) - 1 + log_ratio_S


def term_weights(lengths: Sequence[int], aggregation: Aggregation, max_length: int) -> npt.NDArray[np.float32]:
    """The weight of each of a trajectory's terms, one entry a trajectory, over the whole batch.

    Args:
        lengths: sampled tokens of each trajectory that is trained.
        max_length: constant that `dr_grpo` divides by: the most tokens a trajectory may sample.

    "token" averages over all tokens of the batch (DAPO; Yu et al. 2025, equation 8), "sequence" over the tokens of a
    trajectory and then over trajectories (GRPO; Shao et al. 2024, equation 3), "dr_grpo" divides by a constant
    (Liu et al. 2025, section 3.2).
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
