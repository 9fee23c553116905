"""The loss of a critic, alone and beside that of the policy: the clipped squared error of its values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...policy import Loss, LossInputs, LossOutputs


def clipped_value_error(values_S: Tensor, old_values_S: Tensor, returns_S: Tensor, clip: float | None) -> Tensor:
    """Return the squared errors [S] of a critic that is to move slowly: the surrogate's clipping, applied to values.

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
