"""Attempts that fall silent or take too long, a clock that is set meanwhile; workers; waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mini_agentic_rl.store import InMemoryLightningStore, LightningStore, SqlLightningStore
from mini_agentic_rl.store.lifecycle import StoreClock
from mini_agentic_rl.types import EnqueueRolloutRequest, RolloutConfig

from .test_contract import span_of, status_of

PassTime = Callable[[float], None]


async def test_ordinary_calls_check_health_no_oftener_than_the_debounce_says(pass_time: PassTime) -> None:
    store = InMemoryLightningStore(scan_debounce_seconds=60)
    await store.start_rollout("other", config=RolloutConfig(timeout_seconds=1000))
    claimed = await store.start_rollout("a", config=RolloutConfig(timeout_seconds=60))
    await store.statistics()
    pass_time(61)
    assert await status_of(store, claimed.rollout_id) == ("preparing", "preparing")
    ended = await store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=0)
    assert [rollout.status for rollout in ended] == ["failed"]


async def test_heartbeats_of_many_workers_are_noted_at_once(store: LightningStore) -> None:
    await store.update_worker("w", {"cpu": 0.5})
    await store.update_many_workers({"w": {"cpu": 0.7}, "other": {}})
    workers = await store.query_workers()
    assert [(one.worker_id, one.heartbeat_stats) for one in workers] == [("w", {"cpu": 0.7}), ("other", {})]
    assert all(one.last_heartbeat_time is not None for one in workers)
    with pytest.raises(ValueError, match="1001 heartbeats: at most 1000 at once"):
        await store.update_many_workers({str(number): {} for number in range(1001)})
    assert len(await store.query_workers()) == 2


async def test_waiting_wakes_at_the_last_end_though_others_had_ended_before_it_began(store: LightningStore) -> None:
    before, during = await store.start_rollout(1), await store.start_rollout(2)
    await store.update_attempt(before.rollout_id, "latest", status="succeeded")
    ids = [before.rollout_id, during.rollout_id]
    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids, timeout=3600))
    await asyncio.sleep(0.1)
    await store.update_attempt(during.rollout_id, "latest", status="succeeded")
    ended = await asyncio.wait_for(waiting, 15)
    assert [rollout.rollout_id for rollout in ended] == ids


async def test_waiting_returns_those_that_ended_when_the_time_is_over(store: LightningStore) -> None:
    done, open_ = await store.start_rollout(1), await store.start_rollout(2)
    await store.update_rollout(done.rollout_id, status="cancelled")
    ids = [open_.rollout_id, done.rollout_id]
    started = time.monotonic()
    assert [r.rollout_id for r in await store.wait_for_rollouts(rollout_ids=ids, timeout=0)] == [done.rollout_id]
    assert [r.rollout_id for r in await store.wait_for_rollouts(rollout_ids=ids, timeout=0.1)] == [done.rollout_id]
    assert time.monotonic() - started >= 0.1
    assert await store.wait_for_rollouts(rollout_ids=[], timeout=None) == []


async def test_waiting_notices_a_timeout_that_nobody_else_looks_for(store: LightningStore) -> None:
    claimed = await store.start_rollout("a")
    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=3600))
    await asyncio.sleep(0.05)
    await store.update_rollout(claimed.rollout_id, config=RolloutConfig(timeout_seconds=0.2))
    assert [rollout.status for rollout in await asyncio.wait_for(waiting, 15)] == ["failed"]


async def test_many_attempts_past_their_limits_are_marked_a_part_at_a_time(
    store: LightningStore, pass_time: PassTime
) -> None:
    """So that nobody waits for all of them."""
    config = RolloutConfig(timeout_seconds=60)
    queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=1, config=config)] * 300)
    await store.dequeue_many_rollouts(limit=300)
    pass_time(61)
    counts = await store.statistics()
    assert 0 < counts["rollouts_by_status"]["failed"] < 300
    ids = [rollout.rollout_id for rollout in queued]
    ended = await asyncio.wait_for(store.wait_for_rollouts(rollout_ids=ids, timeout=3600), 15)
    assert [rollout.status for rollout in ended] == ["failed"] * 300


async def test_waiting_for_work_wakes_when_a_silent_runner_gives_its_rollout_back(store: LightningStore) -> None:
    config = RolloutConfig(unresponsive_seconds=0.15, max_attempts=2, retry_condition=["unresponsive"])
    await store.start_rollout("a", config=config)
    assert await asyncio.wait_for(store.wait_for_work(3600), 15) is True


async def test_a_cancelled_wait_leaves_the_store_usable(store: LightningStore) -> None:
    started = time.monotonic()
    assert await store.wait_for_work(0.1) is False
    assert time.monotonic() - started >= 0.1
    claimed = await store.start_rollout("a")
    for wait in (store.wait_for_work(60), store.wait_for_rollouts(rollout_ids=[claimed.rollout_id])):
        task = asyncio.create_task(wait)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await store.enqueue_rollout("b")
    assert await store.dequeue_rollout() is not None


SetClock = Callable[[float], None]
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
