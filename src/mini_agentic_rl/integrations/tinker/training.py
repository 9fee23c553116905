"""One client's adapter while it is trained: its gradients add up until an optimizer step, and nobody else sees them.

A request that fails adds nothing: gradients are as they were before it. All of this runs on the torch thread, inside
the turns of `Policy`.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...errors import UserError
from ...policy import (
    Learner,
    LearnerSettings,
    LoraSettings,
    Policy,
    SeenTerms,
    add_adapter,
    linear_layers,
    load_weights,
    remove_adapter,
    save_weights,
)
from .errors import UNREADABLE, RefusedError
from .losses import LossBatch

logger = logging.getLogger(__name__)

OPTIMIZER_FILE = "optimizer.pt"
LARGEST_STEP = 1e9
"""Largest number of an optimizer step: what is made of them has to fit float32."""


@dataclass(frozen=True)
class AdapterShape:
    """The matrices that an adapter has: adapters of one shape can take each other's weights."""

    rank: int
    attention: bool = True
    mlp: bool = True


@dataclass(frozen=True)
class AdamStep:
    """The numbers of one AdamW step (Loshchilov and Hutter 2019), as the client gives them."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """Gradients are scaled down to this norm; 0 scales nothing."""

    def __post_init__(self) -> None:
        numbers = vars(self)
        for name, value in numbers.items():
            if not 0 <= value <= LARGEST_STEP:
                raise RefusedError(f"adam_params.{name} must be 0 or more and at most {LARGEST_STEP:g}, not {value}")
        for name in ("beta1", "beta2"):
            if numbers[name] >= 1:
                raise RefusedError(f"adam_params.{name} must be below 1, not {numbers[name]}")


@dataclass(frozen=True)
class LossResult:
    """The outcome of `forward_backward`."""

    logprobs: list[npt.NDArray[np.float32]]
    """Log-probabilities of each datum's targets, in their shape."""
    loss: float
    """The sum."""


def add_client_adapter(policy: Policy, name: str, shape: AdapterShape, alpha: int, seed: int | None = None) -> None:
    """Add an adapter of a shape, with freshly drawn weights."""
    model = policy.model
    layers = linear_layers(model, attention=shape.attention, mlp=shape.mlp)
    add_adapter(model, name, LoraSettings(r=shape.rank, alpha=alpha, target_modules=layers), seed=seed)


class TrainedAdapter:
    """An adapter, its gradients and the state of its optimizer.

    Args:
        policy: holds the adapter from here on.
        name: of the adapter; no other may have it.
        shape: its matrices.
        alpha: scale of its output, over the rank.
        settings: bound the memory of its passes.
        seed: of its first weights; None draws any.
    """

    def __init__(
        self,
        policy: Policy,
        name: str,
        shape: AdapterShape,
        *,
        alpha: int,
        settings: LearnerSettings,
        seed: int | None = None,
    ) -> None:
        self._policy = policy
        self.name = name
        self.shape = shape
        add_client_adapter(policy, name, shape, alpha, seed)
        self._learner: Learner = policy.learner(settings, name)
        self.changes = 0
        """Number of times that the weights have changed."""

    def forward_backward(self, batch: LossBatch, *, gradient: bool) -> LossResult:
        """Compute the loss of a batch; with `gradient`, add its gradient to what is there.

        Raises:
            RefusedError: the loss, or a log-probability, is not finite.
        """
        parameters = self._learner.parameters
        # The gradients so far are put aside, so that a batch that fails midway leaves them as they were.
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        try:
            result = self._computed(batch, gradient)
            if not math.isfinite(result.loss) or not all(np.isfinite(each).all() for each in result.logprobs):
                raise RefusedError(
                    "the loss is not finite, and nothing was learnt from it: are `logprobs` those of the sampler, and "
                    "the learning rates of earlier steps not too large?"
                )
        except BaseException:
            for parameter, old in zip(parameters, before, strict=True):
                parameter.grad = old
            raise
        for parameter, old in zip(parameters, before, strict=True):
            if old is not None:
                parameter.grad = old if parameter.grad is None else parameter.grad.add_(old)
        return result

    def optim_step(self, step: AdamStep) -> dict[str, float]:
        """Take an AdamW step with the gradients so far, and forget them.

        Raises:
            RefusedError: they are not finite; they are forgotten all the same.
        """
        for group in self._learner.optimizer.param_groups:
            group.update(betas=(step.beta1, step.beta2), eps=step.eps, weight_decay=step.weight_decay)
        found = self._learner.step_with(step.learning_rate, step.grad_clip_norm or math.inf)
        if found["skipped"]:
            raise RefusedError("the gradients are not finite: the step was skipped, and they were dropped")
        self.changes += 1
        return {"grad_norm:mean": found["grad_norm"], "learning_rate:mean": found["learning_rate"]}

    def save(self, folder: Path, *, optimizer: bool) -> None:
        """Write the weights as peft reads them, and with `optimizer` what an unbroken run would go on with."""
        save_weights(self._policy.model, folder, self.name)
        if optimizer:
            self._learner.save_state(folder / OPTIMIZER_FILE)

    def load(self, folder: Path, *, optimizer: bool) -> None:
        """Take saved weights, and with `optimizer` its state; gradients so far are forgotten.

        Raises:
            RefusedError: they are damaged, of another shape, or have no optimizer's state.
        """
        if optimizer and not (folder / OPTIMIZER_FILE).is_file():
            raise RefusedError("these weights were saved without the optimizer's state: load them without it")
        try:
            load_weights(self._policy.model, folder, self.name)
            if optimizer:
                self._learner.load_state(folder / OPTIMIZER_FILE)
        except UserError as error:  # it names places of the server
            logger.error("%s", error)
            raise RefusedError(UNREADABLE) from error
        self._learner.optimizer.zero_grad(set_to_none=True)
        self._policy.weights_changed(self.name)
        self.changes += 1

    def remove(self) -> None:
        """Free its memory; it is not used again."""
        remove_adapter(self._policy.model, self.name)

    def _computed(self, batch: LossBatch, gradient: bool) -> LossResult:
        streams, seen = batch.streams, SeenTerms(batch.packed.term_count)
        if batch.ratio_mask_S is not None:
            # Chunks of a pass know nothing of each other: what a whole sequence gives is found in a pass before.
            first = SeenTerms(batch.packed.term_count)
            known = replace(streams, rollout_S=torch.zeros(batch.packed.term_count))
            self._learner.forward_backward(batch.packed, batch, known, gradient=False, seen=first)
            streams = replace(streams, rollout_S=batch.sequence_log_ratios(first.logprobs_S))
        sums: dict[str, Any] = self._learner.forward_backward(
            batch.packed, batch, streams, gradient=gradient, seen=seen
        )
        return LossResult(batch.split(seen.logprobs_S), float(sums["loss"]))
