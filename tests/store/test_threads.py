"""The threads of a store outlive what raises in them: the call at fault fails, and the others are answered."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStoreError,
    LightningStoreThreaded,
    SqlLightningStore,
)
from mini_agentic_rl.types import Rollout

BOUND_S = 20


def stops_iterating(_: object) -> Any:
    return next(iter(()))


def exits(_: object) -> Any:
    sys.exit(3)


@pytest.mark.parametrize(("operation", "error"), [(stops_iterating, RuntimeError), (len, TypeError)])
async def test_an_operation_that_raises_fails_alone_whatever_it_raises(
    tmp_path: Path, operation: Any, error: type[Exception]
) -> None:
    store = SqlLightningStore(tmp_path / "store.db")
    bad = asyncio.ensure_future(store._write(operation))
    good = [asyncio.ensure_future(store.enqueue_rollout(number)) for number in range(20)]
    done = await asyncio.wait_for(asyncio.gather(bad, *good, return_exceptions=True), BOUND_S)
    assert isinstance(done[0], error)
    assert len({rollout.rollout_id for rollout in done[1:]}) == 20
    assert (await asyncio.wait_for(store.query_rollouts(), BOUND_S)).total == 20
    await asyncio.wait_for(store.close(), BOUND_S)


async def test_an_operation_that_exits_leaves_no_caller_waiting_and_the_thread_alive(tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "store.db")
    calls = [store._write(exits), *(store.enqueue_rollout(number) for number in range(5))]
    for outcome in (await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), BOUND_S))[1:]:
        assert isinstance(outcome, Rollout | LightningStoreError)
    later = await asyncio.wait_for(store.enqueue_rollout("later"), BOUND_S)
    assert await store.get_rollout_by_id(later.rollout_id) == later
    await asyncio.wait_for(store.close(), BOUND_S)


async def test_a_watcher_that_cannot_start_is_started_by_the_next_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = SqlLightningStore(tmp_path / "store.db"), SqlLightningStore(tmp_path / "store.db")
    started = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "store-watch":
            raise RuntimeError("can't start new thread")
        started(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            await store.wait_for_work(1)
    waiting = asyncio.create_task(store.wait_for_work(BOUND_S))
    await asyncio.sleep(0.1)
    await other.enqueue_rollout("task")
    assert await waiting
    await store.close()
    await other.close()


class Exiting(InMemoryLightningStore):
    """A store whose calls take a moment; one of them exits."""

    async def enqueue_many_rollouts(self, rollouts: Any) -> list[Rollout]:
        await asyncio.sleep(0.05)
        if rollouts[0].input == "exit":
            sys.exit(3)
        return list(await super().enqueue_many_rollouts(rollouts))


async def test_a_call_that_exits_leaves_the_thread_of_a_threaded_store_to_the_others() -> None:
    store = LightningStoreThreaded(Exiting())
    good = [asyncio.ensure_future(store.enqueue_rollout(number)) for number in range(5)]
    caught: list[BaseException] = []

    def exit_in_a_loop_of_its_own() -> None:
        try:
            asyncio.run(store.enqueue_rollout("exit"))
        except BaseException as error:
            caught.append(error)

    await asyncio.wait_for(asyncio.to_thread(exit_in_a_loop_of_its_own), BOUND_S)
    assert isinstance(caught[0], SystemExit)
    assert len(await asyncio.wait_for(asyncio.gather(*good), BOUND_S)) == 5
    assert (await asyncio.wait_for(store.enqueue_rollout("later"), BOUND_S)).input == "later"
    await store.close()
