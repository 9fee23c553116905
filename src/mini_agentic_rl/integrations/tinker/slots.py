"""Adapters that the engine samples with, filled with whichever saved weights are asked for.

Training goes on while older weights are sampled with, so each sampling client's weights are a copy: a folder, loaded
into one of a few slots when they are needed. A slot that nobody samples with takes the next ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import UserError
from ...policy import Policy, remove_adapter
from .errors import GONE, UNREADABLE, NoWeightsError, RefusedError
from .training import AdapterShape, add_client_adapter

logger = logging.getLogger(__name__)


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
