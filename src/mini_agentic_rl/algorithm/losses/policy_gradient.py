"""The whole loss of a policy: the surrogate of a `PolicyLoss`, an importance weight, a KL penalty, an entropy bonus.

A pure function from streams of terms to one number and its metrics. The weight of a term, fixed before the batch is
split, holds the whole normalisation, so the chunks of a batch simply add up. What needs all terms of a rollout together
comes in as a stream that was computed before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...policy import LossInputs, LossOutputs
from . import LOSSES
from .base import ClipRange, LossTerms, PolicyLoss, Stream
from .imitation import imitation
from .kl import KLEstimator, kl


@dataclass(frozen=True)
class PolicyGradientLoss:
    """A surrogate of the policy gradient, with an optional KL penalty and an optional entropy bonus.

    Per term, with the surrogate J of `policy_loss` and the importance weight c (see `corrections/`; 1 without one):

        -c J + kl_coef * KL - entropy_coef * H + teacher_coef * D

    KL is the estimate of `kl.py` against the reference policy, differentiated as written; H is the entropy of the
    distribution that the token was drawn from (Mnih et al. 2016, section 4), which needs entropies with a gradient; D
    the divergence from a teacher, where the streams have its likeliest tokens. What is imitated beside that
    (`imitation.py`) is added.

    Metrics are weighted sums over terms, and `weight` the sum of the weights (`echo/weight` that of what is called
    `echo/...`): `means` divides by it after all chunks.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.0
    kl_estimator: KLEstimator = "k3"
    policy_loss: str = "clip"
    entropy_coef: float = 0.0
    divergence_bound: float = math.inf
    teacher_coef: float = 0.0

    @property
    def chosen(self) -> PolicyLoss:
        """The entry of `LOSSES` that `policy_loss` names."""
        return LOSSES[self.policy_loss]

    @property
    def needs(self) -> frozenset[Stream]:
        """All that has to be computed for it."""
        needs = set(self.chosen.needs)
        if self.kl_coef > 0:
            needs.add("reference_logprobs")
        if self.entropy_coef > 0:
            needs.add("entropy_gradient")
        return frozenset(needs)

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        streams = inputs.streams
        weights_S, correction_S, reference_S = streams.weights_S, streams.correction_S, streams.reference_logprobs_S
        if streams.advantages_S is None or (reference_S is None and "reference_logprobs" in self.needs):
            raise ValueError(
                f"the loss {self.policy_loss!r} needs advantages, and {', '.join(self.needs) or 'no more'}"
            )
        old_S = inputs.behaviour_logprobs_S if streams.old_logprobs_S is None else streams.old_logprobs_S
        surrogate = self.chosen.surrogate(
            LossTerms(
                logprobs_S=inputs.logprobs_S,
                old_logprobs_S=old_S,
                advantages_S=streams.advantages_S,
                entropy_S=inputs.entropy_S,
                bounds=ClipRange(1 - self.clip_low, 1 + self.clip_high, self.divergence_bound),
                reference_logprobs_S=reference_S,
                rollout_S=streams.rollout_S,
            )
        )
        objective_S = surrogate.objective_S if correction_S is None else correction_S * surrogate.objective_S
        loss = -(weights_S * objective_S).sum()
        # Before the first step the old log-probabilities are the learner's own, and without dropout.
        own_S = inputs.logprobs_S.detach() if streams.old_logprobs_S is None else streams.old_logprobs_S
        mismatch_S = own_S - inputs.behaviour_logprobs_S
        # What older weights sampled is another policy's, and not another program's.
        current_S = weights_S if streams.current_S is None else weights_S * streams.current_S
        metrics = {
            "weight": weights_S.sum(),
            "entropy": (weights_S * inputs.entropy_S).sum(),
            "clip_fraction": (weights_S * (0.0 if surrogate.clipped_S is None else surrogate.clipped_S)).sum(),
            "mismatch/mean_abs": (current_S * mismatch_S.abs()).sum(),
            "mismatch/kl": (current_S * (mismatch_S.exp() - 1 - mismatch_S)).sum(),
            "mismatch/weight": current_S.sum(),
        }
        if streams.current_S is not None:
            metrics["staleness/kl"] = (weights_S * (mismatch_S.exp() - 1 - mismatch_S)).sum()
        if correction_S is not None:
            metrics["importance/mean"] = (weights_S * correction_S).sum()
            metrics["importance/masked"] = (weights_S * (correction_S == 0)).sum()
        if self.kl_coef > 0 and reference_S is not None:
            kl_S = kl(inputs.logprobs_S - reference_S, self.kl_estimator)
            metrics["kl"] = (weights_S * kl_S).sum()
            loss = loss + self.kl_coef * metrics["kl"]
        if self.entropy_coef > 0:
            loss = loss - self.entropy_coef * metrics["entropy"]
        if self.teacher_coef > 0 and inputs.teacher_kl_S is not None:
            metrics["teacher/kl"] = (weights_S * inputs.teacher_kl_S).sum()
            loss = loss + self.teacher_coef * metrics["teacher/kl"]
        for name, cross_entropy, weight in imitation(inputs):
            metrics |= {f"{name}/nll": cross_entropy, f"{name}/weight": weight}
            loss = loss + cross_entropy
        return LossOutputs(loss, {name: value.detach() for name, value in metrics.items()})


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the sums that a loss reported as means over the terms, without the weights; what has none is left out.
    The loss itself stays the sum that it is."""
    found: dict[str, float] = {}
    for name, value in sums.items():
        weight = sums.get(f"{name.rpartition('/')[0]}/weight", sums["weight"])
        if name == "loss":
            found[name] = value
        elif name.rpartition("/")[2] != "weight" and weight > 0:
            found[name] = value / weight
    return found
