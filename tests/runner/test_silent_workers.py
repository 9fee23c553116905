"""Runners on a machine that was lost: what they were running is queued again, and nothing else is."""

from __future__ import annotations

import asyncio

from mini_agentic_rl import InMemoryLightningStore
from mini_agentic_rl.execution import ClientServerExecutionStrategy
from mini_agentic_rl.runner import SilentWorkers


class Clock:
    """Time that passes when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def _claimed(store: InMemoryLightningStore, worker: str) -> str:
    await store.enqueue_rollout(worker)
    rollout = await store.dequeue_rollout(worker)
    assert rollout is not None
    await store.update_worker(worker, heartbeat_stats={})
    return rollout.rollout_id


async def test_what_a_silent_worker_runs_is_queued_again_once() -> None:
    store, clock = InMemoryLightningStore(), Clock()
    workers = SilentWorkers(store, 60, clock)
    lost, alive = await _claimed(store, "lost"), await _claimed(store, "alive")
    for clock.now in range(0, 130, 10):
        await workers.check()
        statuses = {one.rollout_id: one.status for one in await store.query_rollouts()}
        assert statuses == {lost: "requeuing" if clock.now >= 70 else "preparing", alive: "preparing"}
        await store.update_worker("alive", heartbeat_stats={})
    (attempt,) = await store.query_attempts(lost)
    assert "no heartbeat for 60 s" in attempt.metadata["error"]


async def test_nobody_is_silent_while_the_store_was_away_or_without_work() -> None:
    store, clock = InMemoryLightningStore(), Clock()
    workers = SilentWorkers(store, 60, clock)
    rollout = await _claimed(store, "worker")
    await store.update_worker("idle", heartbeat_stats={})
    await store.enqueue_rollout("task")
    await store.dequeue_rollout("without heartbeats")
    await workers.check()
    for clock.now in (100.0, 200.0, 300.0, 310.0, 340.0, 359.0):  # the first looks come late, as after an absence
        await workers.check()
    assert (await store.get_rollout_by_id(rollout)).status == "preparing"


async def test_an_algorithm_whose_runners_are_elsewhere_watches_them() -> None:
    store = InMemoryLightningStore()
    rollout = await _claimed(store, "lost")
    strategy = ClientServerExecutionStrategy(role="algorithm", managed_store=False, silent_seconds=0.05)

    async def algorithm(served, event) -> None:
        while (await served.get_rollout_by_id(rollout)).status != "requeuing":
            await asyncio.sleep(0.01)

    async def runner(served, index, event) -> None: ...

    await asyncio.to_thread(strategy.execute, algorithm, runner, store)
