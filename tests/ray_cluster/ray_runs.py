"""What the tests on a Ray cluster share: strategies, runners, and what became of rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psutil

from mini_agentic_rl.execution import ExecutionEvent, RayExecutionStrategy
from mini_agentic_rl.litagent import LitAgent
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store import LightningStore
from mini_agentic_rl.tracer import DummyTracer
from mini_agentic_rl.types import AttemptedRollout

SECONDS = 300
"""Time limit of what is waited for: Ray starts processes that import much, and other work may share the machine."""


def actors() -> list[psutil.Process]:
    """Return the processes of runners: Ray names them after their class."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if " ".join(process.info["cmdline"] or []).startswith("ray::RunnerActor"):
            found.append(process)
    return found


def strategy_of(cluster: Any, **settings: Any) -> RayExecutionStrategy:
    return RayExecutionStrategy(**{"address": cluster.address, "n_runners": 2, "graceful_timeout": 20.0, **settings})


def runner_of(agent: LitAgent[Any]) -> Any:
    async def run(store: LightningStore, index: int, event: ExecutionEvent) -> None:
        runner = LitAgentRunner(DummyTracer(), heartbeat_interval=1.0)
        with runner.run_context(agent=agent, store=store, worker_id=index):
            await runner.iter(event=event)

    return run


def all_rollouts(store: LightningStore) -> list[AttemptedRollout]:
    async def query() -> list[Any]:
        return list(await store.query_rollouts())

    return [one for one in asyncio.run(query()) if isinstance(one, AttemptedRollout)]


def enqueues(count: int, meanwhile: Callable[[], None] | None = None) -> Any:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        ids = [(await store.enqueue_rollout(task)).rollout_id for task in range(count)]
        if meanwhile is not None:
            await asyncio.to_thread(meanwhile)
        assert len(await store.wait_for_rollouts(rollout_ids=ids, timeout=SECONDS)) == count

    return algorithm


async def idle(store: LightningStore, index: int, event: ExecutionEvent) -> None:
    """Run nothing until the end."""
    await event.wait_async()
