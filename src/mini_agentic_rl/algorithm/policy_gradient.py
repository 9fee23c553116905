"""The loss of the policy, as the learner calls it, and its inputs.

A loss is a pure function from the terms of one chunk to one number and its metrics. The weight of a term, fixed before
the batch is split, holds the whole normalisation, so the results of chunks simply add up. `prepare_inputs` adds
the inputs that take a forward pass before the first step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..policy import ClipRange, Learner, LossInputs, LossOutputs
from ..tokens import PackedTrees
from .losses import Floats, KLEstimator, PolicyLoss, Stream, find_loss, importance_correction, kl
from .settings import LoopSettings


@dataclass(frozen=True)
class PolicyGradientLoss:
    """The objective J of `policy_loss`, with an optional KL penalty and an optional entropy bonus. Per term:

        -c J + kl_coef * KL - entropy_coef * H + teacher_coef * D - v log pi

    c is the importance weight (`losses.importance_correction`; 1 without one). KL is the estimate of `losses.kl`
    against the reference policy; H the entropy of the distribution of the token (Mnih et al. 2016, section 4), which
    needs entropies with a gradient; D the divergence from a teacher, where the inputs have its most likely tokens. v
    are the weights of imitated terms (`sft.py`), which no rollout sampled and which weigh 0 in all other parts: `echo`
    for observations, `sft` for demonstrations.

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
        given: Any = inputs
        if given.advantages_S is None or ("reference_logprobs" in self.needs and inputs.reference_logprobs_S is None):
            raise ValueError(
                f"the loss {self.policy_loss!r} needs advantages, and {', '.join(self.needs) or 'no more'}"
            )
        weights_S, correction_S = inputs.weights_S, inputs.correction_S
        # Before the first step the old log-probabilities are the learner's own, and without dropout.
        learner_S = inputs.logprobs_S.detach() if given.old_logprobs_S is None else inputs.old_logprobs_S
        if given.old_logprobs_S is None:
            inputs = replace(inputs, old_logprobs_S=inputs.behaviour_logprobs_S)
        bounds = ClipRange(1 - self.clip_low, 1 + self.clip_high, self.divergence_bound)
        surrogate = self.chosen.surrogate(replace(inputs, bounds=bounds))
        if getattr(getattr(surrogate, "objective_S", None), "shape", None) != weights_S.shape:
            raise UserError(
                f"{self.policy_loss!r} has to return a Surrogate with one number for each term",
                setting="policy_loss",
            )
        objective_S = surrogate.objective_S if correction_S is None else correction_S * surrogate.objective_S
        loss = -(weights_S * objective_S).sum()
        mismatch_S = learner_S - inputs.behaviour_logprobs_S
        # Tokens that older weights sampled differ by the policy, and not by the program that computed them.
        on_policy_S = weights_S if inputs.on_policy_S is None else weights_S * inputs.on_policy_S
        metrics = {
            "weight": weights_S.sum(),
            "entropy": (weights_S * inputs.entropy_S).sum(),
            "clip_fraction": (weights_S * (0.0 if surrogate.clipped_S is None else surrogate.clipped_S)).sum(),
            "mismatch/mean_abs": (on_policy_S * mismatch_S.abs()).sum(),
            "mismatch/kl": (on_policy_S * (mismatch_S.exp() - 1 - mismatch_S)).sum(),
            "mismatch/weight": on_policy_S.sum(),
        }
        if inputs.on_policy_S is not None:
            metrics["staleness/kl"] = (weights_S * (mismatch_S.exp() - 1 - mismatch_S)).sum()
        if correction_S is not None:
            metrics["importance/mean"] = (weights_S * correction_S).sum()
            metrics["importance/masked"] = (weights_S * (correction_S == 0)).sum()
        if self.kl_coef > 0 and inputs.reference_logprobs_S is not None:
            kl_S = kl(inputs.logprobs_S - inputs.reference_logprobs_S, self.kl_estimator)
            metrics["kl"] = (weights_S * kl_S).sum()
            loss = loss + self.kl_coef * metrics["kl"]
        if self.entropy_coef > 0:
            loss = loss - self.entropy_coef * metrics["entropy"]
        if self.teacher_coef > 0 and inputs.teacher_kl_S is not None:
            metrics["teacher/kl"] = (weights_S * inputs.teacher_kl_S).sum()
            loss = loss + self.teacher_coef * metrics["teacher/kl"]
        for name, imitated_S in (("echo", inputs.observation_weights_S), ("sft", inputs.demonstration_weights_S)):
            if imitated_S is not None:
                cross_entropy = -(imitated_S * inputs.logprobs_S).sum()
                metrics |= {f"{name}/nll": cross_entropy, f"{name}/weight": imitated_S.sum()}
                loss = loss + cross_entropy
        return LossOutputs(loss, {name: value.detach() for name, value in metrics.items()})


def loss_of(settings: LoopSettings) -> PolicyGradientLoss:
    """Return the loss that the settings of a run ask for."""
    return PolicyGradientLoss(
        clip_low=settings.clip_ratio,
        clip_high=settings.clip_ratio if settings.clip_ratio_high is None else settings.clip_ratio_high,
        kl_coef=settings.kl_coef if settings.kl_in_loss else 0.0,
        kl_estimator=settings.kl_estimator,
        policy_loss=settings.policy_loss,
        entropy_coef=settings.entropy_coef,
        divergence_bound=settings.divergence_bound,
    )


def prepare_inputs(
    learner: Learner, packed: PackedTrees, loss: PolicyGradientLoss, settings: LoopSettings, inputs: LossInputs
) -> tuple[LossInputs, Floats]:
    """Return `inputs` with those that a loss needs before the first optimizer step on a batch, and log pi_old [S] in
    float64. On the torch thread.

    log pi_old are the learner's own log-probabilities if an importance correction or the loss asks for them, or if the
    learner uses dropout; else those that the sampler recorded.
    """
    behaviour_S = old_S = packed.behaviour_logprobs_S.astype(np.float64)
    if settings.max_staleness:
        inputs = replace(inputs, on_policy_S=as_tensor(packed.version_S == learner.version))
    if "reference_logprobs" in loss.needs:
        inputs = replace(inputs, reference_logprobs_S=learner.logprobs(packed, reference=True).cpu())
    correction = settings.importance_correction
    if correction != "none" or "old_logprobs" in loss.needs or learner.drops:
        old_S = current_logprobs(learner, packed)
        inputs = replace(inputs, old_logprobs_S=as_tensor(old_S))
    if correction != "none":
        weight_S = importance_correction(
            correction, old_S, behaviour_S, packed.trajectory_S, settings.importance_cap, settings.importance_floor
        )
        inputs = replace(inputs, correction_S=as_tensor(weight_S))
    return inputs, old_S


def current_logprobs(learner: Learner, packed: PackedTrees) -> Floats:
    """Return log-probabilities [S] under the learner's weights as they are now. On the torch thread."""
    logprobs_S: Floats = learner.logprobs(packed).double().cpu().numpy()
    return logprobs_S


def as_tensor(values_S: np.ndarray) -> Tensor:
    """Return values as a float32 tensor on the CPU."""
    return torch.from_numpy(values_S.astype(np.float32))


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
