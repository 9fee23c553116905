"""One client's adapter while it is trained: its gradients add up until an optimizer step, and nobody else sees them.

A request that fails adds nothing: gradients are as they were before it. All of this runs on the torch thread, inside
the turns of `Policy`.
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
        inputs, seen = batch.inputs, SeenTerms(batch.packed.term_count)
        if batch.ratio_mask_S is not None:
            # Chunks of a pass know nothing of each other: what a whole sequence gives is found in a pass before.
            first = SeenTerms(batch.packed.term_count)
            known = replace(inputs, rollout_S=torch.zeros(batch.packed.term_count))
            self._learner.forward_backward(batch.packed, batch, known, gradient=False, seen=first)
            inputs = replace(inputs, rollout_S=batch.sequence_log_ratios(first.logprobs_S))
        sums: dict[str, Any] = self._learner.forward_backward(batch.packed, batch, inputs, gradient=gradient, seen=seen)
        return LossResult(batch.split(seen.logprobs_S), float(sums["loss"]))


# Adapters that the engine samples with, filled with whichever saved weights are asked for.
#
# Training goes on while older weights are sampled with, so each sampling client's weights are a copy: a folder, loaded
# into one of a few slots when they are needed. A slot that nobody samples with takes the next ones.


@dataclass(frozen=True)
class SavedWeights:
    """An adapter's weights in a folder, which never change."""

    folder: Path
    shape: AdapterShape
    key: str
    """A name of these weights alone, which those of an overwritten folder do not share."""


@dataclass
class _SamplerSlot:
    name: str
    key: str
    """Weights that it has, or is about to have."""
    shape: AdapterShape | None = None
    """Shape of its adapter; None while there is none."""
    loaded: str | None = None
    """Weights that its adapter has."""
    users: int = 0
    used_at: int = 0
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)


class SamplerSlots:
    """The slots of one policy. Used from one event loop.

    Args:
        count: how many there are at most.
        alpha: scale of the adapters' output.
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
        """Yield the name of an adapter that has these weights for as long as the block; None is the bare model.

        Raises:
            RefusedError: the weights cannot be read, or are gone.
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
        """Return a slot that has the weights, or is free to take them, with one more user."""
        async with self._freed:
            while (slot := self._choose(weights)) is None:
                await self._freed.wait()
            # Named at once: whoever comes next for the same weights waits for this slot and takes no other.
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
        # One of the same shape only takes other numbers; of another, its matrices are made anew.
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
        except UserError as error:  # it names places of the server
            if not weights.folder.is_dir():
                raise NoWeightsError(GONE) from error
            logger.error("%s", error)
            raise RefusedError(UNREADABLE) from error
        slot.loaded = weights.key
