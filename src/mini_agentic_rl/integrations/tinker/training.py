"""One client's adapter in training: its gradients accumulate until an optimizer step.

A failed request leaves the gradients unchanged. Everything here runs on the torch thread of `Policy`, but for
`SamplerSlots`, which belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
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
    load_weights,
    save_weights,
)
from .adapters import linear_layers, remove_adapter
from .losses import LossBatch
from .settings import GONE, UNREADABLE, NoWeightsError, RefusedError

logger = logging.getLogger(__name__)


OPTIMIZER_FILE = "optimizer.pt"
LARGEST_STEP = 1e9
"""Largest number of an optimizer step: results have to fit float32."""


@dataclass(frozen=True)
class AdapterShape:
    """The matrices of an adapter. Adapters of the same shape can load each other's weights."""

    rank: int
    attention: bool = True
    mlp: bool = True


@dataclass(frozen=True)
class AdamStep:
    """Hyperparameters of one AdamW step (Loshchilov and Hutter 2019)."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """Gradient clipping norm; 0 turns clipping off."""

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
        policy: holds the adapter.
        name: unique name of the adapter.
        shape: its matrices.
        alpha: LoRA alpha: its output is scaled by alpha / rank.
        settings: memory bounds of a learning pass.
        seed: seed of the initial weights; None draws a random one.
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
        """Compute the loss of a batch; with `gradient`, add its gradient to those so far.

        Raises:
            RefusedError: the loss, or a log-probability, is not finite.
        """
        parameters = self._learner.parameters
        # The gradients so far are put aside, so that a batch that fails midway leaves them unchanged.
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
        """Take an AdamW step with the gradients so far, and clear them.

        Raises:
            RefusedError: they are not finite; they are cleared too.
        """
        for group in self._learner.optimizer.param_groups:
            group.update(betas=(step.beta1, step.beta2), eps=step.eps, weight_decay=step.weight_decay)
        found = self._learner.step_with(step.learning_rate, step.grad_clip_norm or math.inf)
        if found["skipped"]:
            raise RefusedError("the gradients are not finite: the step was skipped, and they were dropped")
        self.changes += 1
        return {"grad_norm:mean": found["grad_norm"], "learning_rate:mean": found["learning_rate"]}

    def save(self, folder: Path, *, optimizer: bool) -> None:
        """Write the weights in the format of peft, and with `optimizer` the optimizer's state."""
        save_weights(self._policy.model, folder, self.name)
        if optimizer:
            self._learner.save_state(folder / OPTIMIZER_FILE)

    def load(self, folder: Path, *, optimizer: bool) -> None:
        """Load saved weights, and with `optimizer` the optimizer's state; gradients so far are cleared.

        Raises:
            RefusedError: they are damaged, of another shape, or saved without the optimizer's state.
        """
        if optimizer and not (folder / OPTIMIZER_FILE).is_file():
            raise RefusedError("these weights were saved without the optimizer's state: load them without it")
        try:
            load_weights(self._policy.model, folder, self.name)
            if optimizer:
                self._learner.load_state(folder / OPTIMIZER_FILE)
        except UserError as error:  # its text has paths of the server
            logger.error("%s", error)
            raise RefusedError(UNREADABLE) from error
        self._learner.optimizer.zero_grad(set_to_none=True)
        self._policy.weights_changed(self.name)
        self.changes += 1

    def remove(self) -> None:
        """Free its memory; it is not used again."""
        remove_adapter(self._policy.model, self.name)

    def _computed(self, batch: LossBatch, gradient: bool) -> LossResult:
        inputs, seen = batch.inputs, SeenTerms(batch.packed.term_count)
        if batch.ratio_mask_S is not None:
            # A sequence may be split into chunks, so its ratio is computed in a first pass.
            first = SeenTerms(batch.packed.term_count)
            known = replace(inputs, rollout_S=torch.zeros(batch.packed.term_count))
            self._learner.forward_backward(batch.packed, batch, known, gradient=False, seen=first)
            inputs = replace(inputs, rollout_S=batch.sequence_log_ratios(first.logprobs_S))
        sums: dict[str, Any] = self._learner.forward_backward(batch.packed, batch, inputs, gradient=gradient, seen=seen)
        return LossResult(batch.split(seen.logprobs_S), float(sums["loss"]))


# Adapters that the engine samples with.
#
# Training goes on while clients sample with older weights, so each sampling client's weights are a copy: a folder that
# is loaded into one of a few slots when it is needed. An idle slot loads the next weights.


@dataclass(frozen=True)
class SavedWeights:
    """An adapter's weights in a folder, which never change."""

    folder: Path
    shape: AdapterShape
    key: str
    """Unique key of these weights; weights that overwrite the folder have another one."""


@dataclass
class _SamplerSlot:
    name: str
    key: str
    """Key of the weights that are loaded or being loaded."""
    shape: AdapterShape | None = None
    """Shape of its adapter; None without an adapter."""
    loaded: str | None = None
    """Key of the loaded weights."""
    users: int = 0
    used_at: int = 0
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)


class SamplerSlots:
    """The slots of one policy. Used from one event loop.

    Args:
        count: most slots.
        alpha: LoRA alpha of the adapters.
    """

    def __init__(self, policy: Policy, count: int, alpha: int) -> None:
        self._policy = policy
        self._count = count
        self._alpha = alpha
        self._slots: list[_SamplerSlot] = []
        self._uses = 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def holding(self, weights: SavedWeights | None) -> AsyncIterator[str | None]:
        """Yield the name of an adapter with these weights, which keeps them during the block; None for the base model.

        Raises:
            RefusedError: the weights cannot be read, or were removed.
        """
        if weights is None:
            yield None
            return
        slot = await self._taken(weights)
        try:
            async with slot.loading:
                if slot.loaded != weights.key:
                    await self._policy.run_async(lambda: self._load(slot, weights), brief=True)
            yield slot.name
        finally:
            async with self._freed:
                slot.users -= 1
                self._freed.notify_all()

    async def _taken(self, weights: SavedWeights) -> _SamplerSlot:
        """Return a slot with the weights, or an idle one to load them into, with one more user."""
        async with self._freed:
            while (slot := self._choose(weights)) is None:
                await self._freed.wait()
            # The key is set at once, so that the next request for the same weights waits for this slot.
            self._uses += 1
            slot.key, slot.users, slot.used_at = weights.key, slot.users + 1, self._uses
            return slot

    def _choose(self, weights: SavedWeights) -> _SamplerSlot | None:
        idle = sorted((slot for slot in self._slots if not slot.users), key=lambda slot: slot.used_at)
        alike = [slot for slot in idle if slot.shape == weights.shape]
        for slot in self._slots:
            if slot.key == weights.key:
                return slot
        if not alike and len(self._slots) < self._count:
            self._slots.append(_SamplerSlot(f"slot{len(self._slots)}", weights.key))
            return self._slots[-1]
        # A slot of the same shape is only overwritten; one of another shape needs new matrices.
        return next(iter([*alike, *idle]), None)

    def _load(self, slot: _SamplerSlot, weights: SavedWeights) -> None:
        """Fill a slot, on the torch thread."""
        slot.loaded = None
        if slot.shape != weights.shape:
            if slot.shape is not None:
                remove_adapter(self._policy.model, slot.name)
            slot.shape = None
            add_client_adapter(self._policy, slot.name, weights.shape, self._alpha)
            slot.shape = weights.shape
        try:
            self._policy.read_weights(weights.folder, slot.name)
        except UserError as error:  # its text has paths of the server
            if not weights.folder.is_dir():
                raise NoWeightsError(GONE) from error
            logger.error("%s", error)
            raise RefusedError(UNREADABLE) from error
        slot.loaded = weights.key
