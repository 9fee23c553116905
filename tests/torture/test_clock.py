"""The clock is set by minutes to days, forward and back, at any moment: live rollouts stay, and dead ones are found."""

from __future__ import annotations

import random
import time
from pathlib import Path
from unittest import mock

from mini_agentic_rl import InMemoryLightningStore, LightningStore, RolloutConfig, SqlLightningStore
from mini_agentic_rl.types import Span

from .conftest import Attack

LIMIT = 60.0
JUMPS = (-86_400.0, -3600.0, -120.0, -2.0, 2.0, 61.0, 3600.0, 86_400.0)


class Clocks:
    """The time of day, and the clock that nobody sets."""

    def __init__(self) -> None:
        self.even = 1000.0
        self.offset = 1.7e9

    def steady(self) -> float:
        return self.even

    def time(self) -> float:
        return self.even + self.offset


async def test_the_clock_is_set_while_rollouts_run(attack: Attack, tmp_path: Path) -> None:
    for number in range(attack.times(200)):
        rng, clocks = random.Random(number), Clocks()
        with (
            attack.attempt(number),
            mock.patch("time.time", clocks.time),
            mock.patch("mini_agentic_rl.store.lifecycle.steady", clocks.steady),
        ):
            store: LightningStore = (
                InMemoryLightningStore(scan_debounce_seconds=0)
                if number % 2
                else SqlLightningStore(tmp_path / f"{number}.db", scan_debounce_seconds=0)
            )
            await _jump_about(store, clocks, rng)
            await store.close()


async def _jump_about(store: LightningStore, clocks: Clocks, rng: random.Random) -> None:
    config = RolloutConfig(unresponsive_seconds=LIMIT)
    live, dead = [await store.start_rollout(name, config=config) for name in ("live", "dead")]
    for number in range(1, 13):
        clocks.even += rng.uniform(1, LIMIT - 10)
        if rng.random() < 0.5:
            clocks.offset += rng.choice(JUMPS)
            if rng.random() < 0.5:
                await store.query_rollouts()
        now = time.time()
        await store.add_span(
            Span.from_attributes(
                rollout_id=live.rollout_id,
                attempt_id=live.attempt.attempt_id,
                sequence_id=number,
                name="sign",
                attributes={},
                start_time=now,
                end_time=now,
            )
        )
        found = await store.get_rollout_by_id(live.rollout_id)
        assert found is not None
        assert found.status == "running", number
    await store.query_rollouts()
    clocks.even += LIMIT + 1
    await store.query_rollouts()
    lost = await store.get_rollout_by_id(dead.rollout_id)
    assert lost is not None
    assert lost.status == "failed"
