"""Seeds of rollouts: a rollout whose metadata hold `sampling_seed` samples the same tokens whenever it runs again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from mini_agentic_rl.store.base import LightningStore

from .conversations import Scope

METADATA_KEY = "sampling_seed"
_REMEMBERED = 4096


@dataclass
class RolloutSeeds:
    """Gives each call of an attempt its own seed, by its place in the attempt. Used from one event loop."""

    store: LightningStore
    _seeds: OrderedDict[tuple[str, str], list[int | None]] = field(default_factory=OrderedDict)
    """For each attempt: the rollout's seed, and how many calls it has made."""

    async def next(self, scope: Scope) -> int | None:
        """Seed of the next call under `scope`; None where the rollout has none."""
        if scope is None:
            return None
        if scope not in self._seeds:
            rollout = await self.store.get_rollout_by_id(scope[0])
            seed = None if rollout is None else rollout.metadata.get(METADATA_KEY)
            self._seeds[scope] = [None if seed is None else int(seed), 0]
            if len(self._seeds) > _REMEMBERED:
                self._seeds.popitem(last=False)
        seed, calls = self._seeds[scope]
        if seed is None or calls is None:
            return None
        self._seeds[scope][1] = calls + 1
        return int.from_bytes(hashlib.blake2b(f"{seed}/{calls}".encode(), digest_size=8).digest(), "big") >> 1
