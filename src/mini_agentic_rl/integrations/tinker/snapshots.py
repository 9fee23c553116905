"""Copies of adapters in training, to sample with while the training goes on."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter, OrderedDict
from pathlib import Path

from ...policy import Policy
from .errors import GONE, NoWeightsError
from .sessions import ClientModel
from .slots import SavedWeights


class Snapshots:
    """The copies without a name, in a folder of their own. Used from one event loop.

    Args:
        folder: for the copies; removed at the end.
        most: copies that are kept; beyond it those that were used longest ago are dropped, of the client that has most.
    """

    def __init__(self, policy: Policy, folder: Path, most: int) -> None:
        self._policy = policy
        self._folder = folder
        self._most = most
        self._kept: OrderedDict[str, SavedWeights] = OrderedDict()
        self._sessions: dict[str, str] = {}
        """The session that each copy belongs to."""
        self._made = 0

    async def take(self, model: ClientModel) -> SavedWeights:
        """Return a copy of a client's weights as they are; where they have not changed since the last one, that one.

        Raises:
            RefusedError: the client has no adapter.
        """
        adapter = model.made()
        if model.snapshot is not None:
            changes, weights = model.snapshot
            if changes == adapter.changes and weights.key in self._kept:
                self._kept.move_to_end(weights.key)
                return weights
        self._made += 1
        folder = self._folder / str(self._made)
        weights = SavedWeights(folder, adapter.shape, str(folder))
        await self._policy.run_async(lambda: adapter.save(folder, optimizer=False))
        model.snapshot = (adapter.changes, weights)
        self._kept[weights.key] = weights
        self._sessions[weights.key] = model.model_id.split(":")[0]
        while len(self._kept) > self._most:
            counts = Counter(self._sessions[key] for key in self._kept)
            most = max(counts.values())
            await self._drop(next(key for key in self._kept if counts[self._sessions[key]] == most))
        return weights

    async def end(self, session_id: str) -> None:
        """Drop the copies of a client that has gone."""
        for key in [key for key in self._kept if self._sessions[key] == session_id]:
            await self._drop(key)

    async def _drop(self, key: str) -> None:
        weights = self._kept.pop(key, None)
        self._sessions.pop(key, None)
        if weights is not None:
            await asyncio.to_thread(shutil.rmtree, weights.folder, ignore_errors=True)

    def use(self, weights: SavedWeights) -> None:
        """Note that weights are sampled with.

        Raises:
            NoWeightsError: they are gone.
        """
        if weights.key in self._kept:
            self._kept.move_to_end(weights.key)
        elif not weights.folder.is_dir():
            raise NoWeightsError(GONE)

    def close(self) -> None:
        """Remove all copies."""
        shutil.rmtree(self._folder, ignore_errors=True)
