"""The loss of GRPO and its relatives: a pure function from per-term streams to one number and its metrics.

A term is one sampled token of one rollout. Its weight, fixed before the batch is split, holds the whole normalisation,
so the chunks of a batch simply add up. What needs all terms of a rollout together comes in as a stream that was
computed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mini_agentic_rl.policy import LossInputs, LossOutputs

from .kl import kl
from .settings import Aggregation, KLEstimator, PolicyLoss
from .surrogate import SURROGATES, ClipRange, Ratios


@dataclass(frozen=True)
class GRPOLoss:
    """A surrogate of the policy gradient, with an optional KL penalty and an optional entropy bonus.

    Per term, with the surrogate J of `policy_loss` (see `surrogate.py`; for `clip` GRPO's, Shao et al. 2024,
    equation 3) and the importance weight c (see `importance.py`; 1 without a correction):

        -c J + kl_coef * KL - entropy_coef * H

    KL is the estimate of `kl.py` against the adapter-off reference, differentiated as written; H is the entropy of the
    distribution that the token was drawn from (Mnih et al. 2016, section 4), which needs entropies with a gradient.

    Streams, all [S]: `advantages` and `weights`; `old_logprobs` where ratios are to the learner's own numbers and not
    the sampler's; `correction`, c; `sequence_log_ratio` for `gspo`; `reference_logprobs` when `kl_coef` > 0. Metrics
    are weighted sums over terms, and `weight` the sum of the weights: dividing by it after all chunks gives means.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.0
    kl_estimator: KLEstimator = "k3"
    policy_loss: PolicyLoss = "clip"
    entropy_coef: float = 0.0

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        streams = inputs.streams
        weights_S = streams["weights"]
        ratios = Ratios(
            inputs.logprobs_S,
            streams.get("old_logprobs", inputs.behaviour_logprobs_S),
            streams.get("sequence_log_ratio"),
        )
        bounds = ClipRange(1 - self.clip_low, 1 + self.clip_high)
        surrogate_S, clipped_S = SURROGATES[self.policy_loss](ratios, streams["advantages"], bounds)
        correction_S = streams.get("correction")
        if correction_S is not None:
            surrogate_S = correction_S * surrogate_S
        loss = -(weights_S * surrogate_S).sum()
        mismatch_S = (inputs.logprobs_S - inputs.behaviour_logprobs_S).detach()
        metrics = {
            "weight": weights_S.sum(),
            "entropy": (weights_S * inputs.entropy_S).sum(),
            "clip_fraction": (weights_S * clipped_S).sum(),
            "mismatch/mean_abs": (weights_S * mismatch_S.abs()).sum(),
            "mismatch/kl": (weights_S * (mismatch_S.exp() - 1 - mismatch_S)).sum(),
        }
        if correction_S is not None:
            metrics["importance/mean"] = (weights_S * correction_S).sum()
        if self.kl_coef > 0:
            kl_S = kl(inputs.logprobs_S - streams["reference_logprobs"], self.kl_estimator)
            metrics["kl"] = (weights_S * kl_S).sum()
            loss = loss + self.kl_coef * metrics["kl"]
        if self.entropy_coef > 0:
            loss = loss - self.entropy_coef * metrics["entropy"]
        return LossOutputs(loss, {name: value.detach() for name, value in metrics.items()})


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
