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
import torch
from torch import nn

from ...errors import UserError
from ...policy import (
    DEFAULT_ADAPTER,
    Learner,
    LearnerSettings,
    LoraSettings,
    Policy,
    PolicyError,
    PolicyModel,
    SeenTerms,
    add_adapter,
    load_weights,
    save_weights,
)
from .losses import LossBatch
from .protobuf import LossAnswer
from .requests import AdamBody
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


def check_step(step: AdamBody) -> None:
    """Check the hyperparameters of a step."""
    for name, value in step.model_dump().items():
        if not 0 <= value <= LARGEST_STEP:
            raise RefusedError(f"adam_params.{name} must be 0 or more and at most {LARGEST_STEP:g}, not {value}")
        if name in ("beta1", "beta2") and value >= 1:
            raise RefusedError(f"adam_params.{name} must be below 1, not {value}")


def remove_adapter(model: PolicyModel, name: str) -> None:
    """Remove an adapter that nothing samples with any more, and free its memory. On the torch thread."""
    if name not in model.versions or name == DEFAULT_ADAPTER or model.peft_model is None:
        raise PolicyError(f"there is no adapter named {name!r} to remove")
    model.unpack()
    model.activate(DEFAULT_ADAPTER)
    model.peft_model.delete_adapter(name)
    model.adapters = tuple(adapter for adapter in model.adapters if adapter != name)
    del model.versions[name]


def linear_layers(model: PolicyModel, *, attention: bool, mlp: bool) -> tuple[str, ...]:
    """Return the names of the linear layers of the attention, of the MLP or of both, as `target_modules` takes them."""
    layers: set[str] = set()
    for path, module in model.backbone.named_modules():
        if not isinstance(module, nn.Linear) or ".lora_" in path:
            continue
        names = [part for part in path.split(".") if part != "base_layer"]
        # A layer inside a module named after attention belongs to it; all others count as the MLP's.
        of_attention = any(word in part.lower() for part in names[:-1] for word in ("attn", "attention"))
        if attention if of_attention else mlp:
            layers.add(names[-1])
    if not layers:
        raise PolicyError("the model has no linear layers of that kind", setting="target_modules")
    return tuple(sorted(layers))


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

    def forward_backward(self, batch: LossBatch, *, gradient: bool) -> LossAnswer:
        """Compute the loss of a batch; with `gradient`, add its gradient to those so far."""
        parameters = self._learner.parameters
        # The gradients so far are put aside, so that a batch that fails midway leaves them unchanged.
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        try:
            answer = self._computed(batch, gradient)
            if not math.isfinite(answer.metrics["loss:sum"]) or not all(
                np.isfinite(each).all() for each in answer.logprobs
            ):
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
        return answer

    def optim_step(self, step: AdamBody) -> dict[str, float]:
        """Take an AdamW step with the gradients so far, and clear them."""
        for group in self._learner.optimizer.param_groups:
            group.update(betas=(step.beta1, step.beta2), eps=step.eps, weight_decay=step.weight_decay)
        metrics = self._learner.step_with(step.learning_rate, step.grad_clip_norm or math.inf)
        if metrics["skipped"]:
            raise RefusedError("the gradients are not finite: the step was skipped, and they were dropped")
        self.changes += 1
        return {"grad_norm:mean": metrics["grad_norm"], "learning_rate:mean": metrics["learning_rate"]}

    def save(self, folder: Path, *, optimizer: bool) -> None:
        """Write the weights in the format of peft, and with `optimizer` the optimizer's state."""
        save_weights(self._policy.model, folder, self.name)
        if optimizer:
            self._learner.save_state(folder / OPTIMIZER_FILE)

    def load(self, folder: Path, *, optimizer: bool) -> None:
        """Load saved weights, and with `optimizer` the optimizer's state; gradients so far are cleared."""
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

    def _computed(self, batch: LossBatch, gradient: bool) -> LossAnswer:
        inputs, seen = batch.inputs, SeenTerms(batch.packed.term_count)
        if batch.ratio_mask_S is not None:
            # A sequence may be split into chunks, so its ratio is computed in a first pass.
            first = SeenTerms(batch.packed.term_count)
            known = replace(inputs, rollout_S=torch.zeros(batch.packed.term_count))
            self._learner.forward_backward(batch.packed, batch, known, gradient=False, seen=first)
            inputs = replace(inputs, rollout_S=batch.sequence_log_ratios(first.logprobs_S))
        sums: dict[str, Any] = self._learner.forward_backward(batch.packed, batch, inputs, gradient=gradient, seen=seen)
        return LossAnswer(batch.split(seen.logprobs_S), {"loss:sum": float(sums["loss"])})


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
        """Yield the name of an adapter that keeps these weights during the block; None for the base model."""
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
