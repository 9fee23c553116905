"""The whole loss of an update, as the learner calls it: the policy's part, and the critic's of PPO.

Each loss is a pure function from the terms of one chunk to one number and its metrics. The weight of a term, fixed
before the batch is split, holds the whole normalisation, so the results of chunks simply add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..policy import Loss, LossInputs, LossOutputs
from .losses import ClipRange, KLEstimator, LossTerms, PolicyLoss, Stream, find_loss, kl


@dataclass(frozen=True)
class PolicyGradientLoss:
    """The objective J of `policy_loss`, with an optional KL penalty and an optional entropy bonus. Per term:

        -c J + kl_coef * KL - entropy_coef * H + teacher_coef * D - v log pi

    c is the importance weight (`losses.importance_correction`; 1 without one). KL is the estimate of `losses.kl`
    against the reference policy; H the entropy of the distribution of the token (Mnih et al. 2016, section 4), which
    needs entropies with a gradient; D the divergence from a teacher, where the streams have its likeliest tokens. v are
    the weights of imitated terms (`grpo/imitation.py`), which no rollout sampled and which weigh 0 in all other parts:
    `echo` for observations, `sft` for demonstrations.

    Metrics are weighted sums over terms, and `weight` the sum of the weights (`echo/weight` for `echo/...`): `means`
    divides by it after all chunks.
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
        """The loss that `policy_loss` names."""
        return find_loss(self.policy_loss)

    @property
    def needs(self) -> frozenset[Stream]:
        """Its optional inputs."""
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
        # Tokens that older weights sampled differ by the policy, and not by the program that computed them.
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
        for name, imitated_S in (("echo", streams.observation_weights_S), ("sft", streams.demonstration_weights_S)):
            if imitated_S is not None:
                cross_entropy = -(imitated_S * inputs.logprobs_S).sum()
                metrics |= {f"{name}/nll": cross_entropy, f"{name}/weight": imitated_S.sum()}
                loss = loss + cross_entropy
        return LossOutputs(loss, {name: value.detach() for name, value in metrics.items()})


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the summed metrics of a loss as means over the terms, without the weights; a metric whose weights are 0 is
    left out. `loss` stays a sum."""
    metrics: dict[str, float] = {}
    for name, value in sums.items():
        weight = sums.get(f"{name.rpartition('/')[0]}/weight", sums["weight"])
        if name == "loss":
            metrics[name] = value
        elif name.rpartition("/")[2] != "weight" and weight > 0:
            metrics[name] = value / weight
    return metrics


def clipped_value_error(values_S: Tensor, old_values_S: Tensor, returns_S: Tensor, clip: float | None) -> Tensor:
    """Return the squared errors [S] of a critic, with the clipping of the policy's ratio applied to values.

    It is in the authors' implementation of Schulman et al. 2017, and written down by Engstrom et al. 2020
    (arXiv:2005.12729, section 3).

        1/2 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2)

    A `clip` of None leaves 1/2 (V - R)^2.
    """
    errors_S = (values_S - returns_S).square()
    if clip is not None:
        clipped_S = torch.minimum(torch.maximum(values_S, old_values_S - clip), old_values_S + clip)
        errors_S = torch.maximum(errors_S, (clipped_S - returns_S).square())
    return errors_S / 2


@dataclass(frozen=True)
class ValueLoss:
    """The critic alone: the sum of weight * `clipped_value_error`. Needs the streams `old_values_S` and `returns_S`."""

    clip: float | None = 0.2

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        values_S, weights_S = inputs.values_S, inputs.streams.weights_S
        if values_S is None:
            raise ValueError("the value loss needs a learner with a critic: Policy.value_learner")
        old_S, returns_S = inputs.streams.old_values_S, inputs.streams.returns_S
        if old_S is None or returns_S is None:
            raise ValueError("the value loss needs the streams old_values_S and returns_S")
        loss = (weights_S * clipped_value_error(values_S, old_S, returns_S, self.clip)).sum()
        metrics = {"weight": weights_S.sum(), "value/loss": loss.detach()}
        if self.clip is not None:
            outside_S = (values_S.detach() - old_S).abs() > self.clip
            metrics["value/clip_fraction"] = (weights_S * outside_S).sum()
        return LossOutputs(loss, metrics)


@dataclass(frozen=True)
class PPOLoss:
    """policy + coefficient * value (Schulman et al. 2017, equation 9, the entropy bonus being part of `policy`). Both
    are sums of terms with the same weights, so chunks add up."""

    policy: Loss
    value: Loss
    coefficient: float = 0.5

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        policy, value = self.policy(inputs), self.value(inputs)
        return LossOutputs(policy.loss + self.coefficient * value.loss, {**value.metrics, **policy.metrics})
