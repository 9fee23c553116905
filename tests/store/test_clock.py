"""The clock is set while rollouts run: no live one loses time by it, and a dead one is found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mini_agentic_rl.store import LightningStore, SqlLightningStore
from mini_agentic_rl.store.lifecycle import StoreClock
from mini_agentic_rl.types import RolloutConfig

from .test_contract import span_of, status_of

SetClock = Callable[[float], None]
PassTime = Callable[[float], None]
HOUR = 3600.0
LIMITS = RolloutConfig(unresponsive_seconds=60, timeout_seconds=300)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_a_clock_that_is_set_fails_no_live_rollout(
    store: LightningStore, set_clock: SetClock, pass_time: PassTime, seconds: float
) -> None:
    before = await store.start_rollout("before", config=LIMITS)
    pass_time(50)
    set_clock(seconds)
    assert await status_of(store, before.rollout_id) == ("preparing", "preparing")
    ended = await store.wait_for_rollouts(rollout_ids=[before.rollout_id], timeout=0)
    assert ended == []
    for number in range(1, 6):
        pass_time(40)
        await store.add_span(span_of(before, number))
        assert await status_of(store, before.rollout_id) == ("running", "running")


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_an_attempt_that_died_before_the_clock_was_set_is_found_an_interval_later(
    store: LightningStore, set_clock: SetClock, pass_time: PassTime, seconds: float
) -> None:
    dead = await store.start_rollout("dead", config=LIMITS)
    pass_time(50)
    set_clock(seconds)
    assert await status_of(store, dead.rollout_id) == ("preparing", "preparing")
    pass_time(61)
    assert await status_of(store, dead.rollout_id) == ("failed", "unresponsive")


async def test_a_store_that_is_opened_again_allows_a_whole_interval(tmp_path: Path, pass_time: PassTime) -> None:
    first = SqlLightningStore(tmp_path / "store.db", scan_debounce_seconds=0)
    claimed = await first.start_rollout("a", config=LIMITS)
    await first.close()
    pass_time(HOUR)
    again = SqlLightningStore(tmp_path / "store.db", scan_debounce_seconds=0)
    assert await status_of(again, claimed.rollout_id) == ("preparing", "preparing")
    pass_time(59)
    await again.add_span(span_of(claimed))
    pass_time(59)
    assert await status_of(again, claimed.rollout_id) == ("running", "running")
    pass_time(2)
    assert await status_of(again, claimed.rollout_id) == ("failed", "unresponsive")
    await again.close()


@pytest.mark.parametrize("skew", [-HOUR, float("inf")])
async def test_a_heartbeat_counts_by_the_stores_clock_whatever_the_runners_says(
    store: LightningStore, pass_time: PassTime, skew: float
) -> None:
    claimed = await store.start_rollout("live", config=LIMITS)
    for _ in range(3):
        pass_time(50)
        beat = await store.update_attempt(
            claimed.rollout_id, claimed.attempt.attempt_id, status="running", last_heartbeat_time=time.time() + skew
        )
        assert beat.last_heartbeat_time == pytest.approx(time.time(), abs=30)
        assert await status_of(store, claimed.rollout_id) == ("running", "running")
    pass_time(61)
    assert await status_of(store, claimed.rollout_id) == ("failed", "unresponsive")


async def test_a_caller_that_waits_over_a_jump_waits_and_does_not_spin(
    store: LightningStore, set_clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = await store.start_rollout("a", config=LIMITS)
    set_clock(HOUR)
    waiting = asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=30))
    await asyncio.sleep(0.1)
    await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    assert [rollout.status for rollout in await waiting] == ["succeeded"]


def test_a_clock_that_is_corrected_gently_has_not_jumped(set_clock: SetClock, pass_time: PassTime) -> None:
    clock = StoreClock()
    begun = clock.look_for_scan().since
    for _ in range(1000):
        pass_time(10)
        set_clock(0.005)
        now = clock.look_for_scan()
    assert now.time - now.since == pytest.approx(10_000, rel=0.01)
    assert now.since == pytest.approx(begun, abs=10)
    set_clock(5)
    assert clock.look_for_scan().since == pytest.approx(now.time + 5, abs=1)
