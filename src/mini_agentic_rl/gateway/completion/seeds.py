"""Seeds of rollouts: a rollout whose metadata hold `sampling_seed` samples the same tokens whenever it runs again.

One that may be tried several times samples other tokens at each attempt: the same ones would fail again.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from mini_agentic_rl.store import LightningStore
from mini_agentic_rl.types import AttemptedRollout, Rollout

from .remember import Scope

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
            self._seeds[scope] = [None if rollout is None else _seed_of(rollout), 0]
            if len(self._seeds) > _REMEMBERED:
                self._seeds.popitem(last=False)
        seed, calls = self._seeds[scope]
        if seed is None or calls is None:
            return None
        self._seeds[scope][1] = calls + 1
        return int.from_bytes(hashlib.blake2b(f"{seed}/{calls}".encode(), digest_size=8).digest(), "big") >> 1


def _seed_of(rollout: Rollout) -> int | None:
    seed = rollout.metadata.get(METADATA_KEY)
    if seed is None:
        return None
    if isinstance(rollout, AttemptedRollout) and rollout.config.max_attempts > 1:
        return int(seed) + rollout.attempt.sequence_id - 1
    return int(seed)
