"""Many threads, event loops and processes on one store."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreError,
    LightningStoreThreaded,
    SqlLightningStore,
)
from mini_agentic_rl.types import EnqueueRolloutRequest, Rollout

from .conftest import make_store
from .postgres import needs_postgres, new_database
from .test_contract import span_of


async def _claim_all(store: LightningStore, worker_id: str) -> list[str]:
    claimed = []
    while (rollout := await store.dequeue_rollout(worker_id)) is not None:
        number = await store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id)
        await store.add_span(span_of(rollout, number))
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
        claimed.append(rollout.rollout_id)
    return claimed


async def test_eight_threads_with_their_own_event_loops_claim_each_rollout_once(store: LightningStore) -> None:
    queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(80)])
    start = threading.Barrier(8)

    def work(index: int) -> list[str]:
        start.wait()
        return asyncio.run(_claim_all(store, f"w{index}"))

    with ThreadPoolExecutor(8) as threads:
        loop = asyncio.get_running_loop()
        claims = await asyncio.gather(*(loop.run_in_executor(threads, work, index) for index in range(8)))
    claimed = [rollout_id for claim in claims for rollout_id in claim]
    assert sorted(claimed) == sorted(rollout.rollout_id for rollout in queued)
    assert (await store.query_rollouts(status_in=["succeeded"])).total == 80
    assert (await store.statistics())["total_spans"] == 80


async def test_a_wait_in_one_thread_is_woken_by_another(store: LightningStore) -> None:
    started = await store.start_rollout("a")

    def wait() -> tuple[int, bool]:
        async def both() -> tuple[int, bool]:
            ended, work = await asyncio.gather(
                store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=3600), store.wait_for_work(3600)
            )
            return len(ended), work

        return asyncio.run(both())

    with ThreadPoolExecutor(1) as threads:
        waiting = asyncio.get_running_loop().run_in_executor(threads, wait)
        await asyncio.sleep(0.1)
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        await store.enqueue_rollout("b")
        assert await asyncio.wait_for(waiting, 60) == (1, True)


@pytest.mark.parametrize("kind", ["memory", "sqlite", pytest.param("postgres", marks=needs_postgres)])
async def test_cancelled_calls_lose_nothing(kind: str, tmp_path: Path) -> None:
    store = make_store(kind, tmp_path)
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(30)])
    calls = [asyncio.create_task(store.dequeue_rollout(f"w{n}")) for n in range(30)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    claimed = {answer.rollout_id for answer in answers if not isinstance(answer, BaseException) and answer is not None}
    while (rollout := await store.dequeue_rollout()) is not None:
        assert rollout.rollout_id not in claimed
        claimed.add(rollout.rollout_id)
    preparing = await store.query_rollouts(status_in=["preparing"])
    assert preparing.total == 30
    # calls that were cancelled while their claims were being committed may have claimed: at most those of one commit
    assert len(claimed) >= 15
    await store.close()


async def test_the_cost_of_a_call_in_memory_does_not_grow_with_the_number_of_rollouts() -> None:
    async def seconds_per_cycle(store: LightningStore, cycles: int = 150) -> float:
        best = float("inf")
        for _ in range(3):
            started = time.thread_time()
            for _ in range(cycles):
                rollout = await store.dequeue_rollout("w")
                assert rollout is not None
                await store.add_span(span_of(rollout))
                await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
                await store.query_rollouts(rollout_id_in=[rollout.rollout_id])
                await store.query_rollouts(status_in=["running"])
            best = min(best, time.thread_time() - started)
        return best / cycles

    small, large = InMemoryLightningStore(), InMemoryLightningStore()
    await small.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(800)])
    await large.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(20_000)])
    # 25 times as many: what grows with them costs many times as much, and what the machine does beside it does not
    assert await seconds_per_cycle(large) < 9 * await seconds_per_cycle(small)


_CLAIMER = """
import asyncio, json, sys
from mini_agentic_rl.store import SqlLightningStore

async def main():
    store = SqlLightningStore(sys.argv[1])
    claimed = []
    while await store.wait_for_work(0.5):
        rollout = await store.dequeue_rollout("process")
        if rollout is not None:
            await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
            claimed.append(rollout.rollout_id)
    print(json.dumps(claimed))

asyncio.run(main())
"""


def _python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=needs_postgres)])
async def test_two_processes_on_one_database_claim_each_rollout_once(kind: str, tmp_path: Path) -> None:
    database = str(tmp_path / "store.db") if kind == "sqlite" else new_database()
    processes = [_python(_CLAIMER, database) for _ in range(2)]  # they also race to make the tables
    store = SqlLightningStore(database)
    queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(60)])
    ids = [rollout.rollout_id for rollout in queued]
    ended = await store.wait_for_rollouts(rollout_ids=ids, timeout=60)
    assert len(ended) == 60
    claims = [json.loads((await asyncio.to_thread(process.communicate))[0]) for process in processes]
    assert sorted(claims[0] + claims[1]) == sorted(ids)
    await store.close()


_FORKING = """
import asyncio, os, sys
from mini_agentic_rl.store import LightningStoreError, SqlLightningStore
store = SqlLightningStore(sys.argv[1])
asyncio.run(store.enqueue_rollout("a"))
if os.fork() == 0:
    try:
        asyncio.run(store.enqueue_rollout("b"))
    except LightningStoreError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork here: that a forked store is refused is left unchecked")
def test_a_store_refuses_to_be_used_after_a_fork_and_need_not_be_closed(tmp_path: Path) -> None:
    process = _python(_FORKING, str(tmp_path / "store.db"))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "opened before a fork" in output


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "store.db")
    store._read_threads.shutdown()  # a read comes while the store closes
    with pytest.raises(LightningStoreError, match=r"store\.db is closed"):
        await store.query_rollouts()
    await store.close()
    await store.close()
    with pytest.raises(LightningStoreError, match="is closed"):
        await store.enqueue_rollout("a")


async def test_calls_that_wait_at_the_same_time_share_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = []
    store = SqlLightningStore(tmp_path / "store.db")
    transaction = store._database.transaction

    def counted(work: Any) -> None:
        commits.append(True)
        transaction(work)

    monkeypatch.setattr(store._database, "transaction", counted)
    await asyncio.gather(*(store.enqueue_rollout(n) for n in range(200)))
    assert 0 < len(commits) < 50
    assert len({rollout.rollout_id for rollout in await store.dequeue_many_rollouts(limit=300)}) == 200
    await store.close()


async def test_a_call_that_fails_takes_none_of_those_beside_it_along(tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "store.db")
    claimed = await store.start_rollout("a")
    ids = claimed.rollout_id, claimed.attempt.attempt_id
    half_wrong = [EnqueueRolloutRequest(input="half"), EnqueueRolloutRequest(input=object())]
    calls = [
        store.enqueue_rollout("one"),
        store.get_many_span_sequence_ids([ids, (claimed.rollout_id, "at-none")]),
        store.enqueue_many_rollouts(half_wrong),
        store.get_next_span_sequence_id(*ids),
        store.start_attempt("ro-none"),
        store.enqueue_rollout("two"),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, ValueError) for answer in answers] == [False, True, True, False, True, False]
    assert answers[3] == 1
    assert [rollout.input for rollout in await store.query_rollouts(status_in=["queuing"])] == ["one", "two"]
    await store.close()


async def test_calls_from_threads_whose_event_loops_are_gone_leave_the_store_usable(tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "store.db")

    async def ask_and_leave() -> None:
        asyncio.get_running_loop().create_task(store.enqueue_rollout("a"))
        await asyncio.sleep(0)

    for _ in range(5):
        await asyncio.to_thread(asyncio.run, ask_and_leave())
    assert await store.enqueue_rollout("b") is not None
    assert "b" in [rollout.input for rollout in await store.query_rollouts()]
    await store.close()


BOUND_S = 20


def stops_iterating(_: object) -> Any:
    return next(iter(()))


def exits(_: object) -> Any:
    sys.exit(3)


@pytest.mark.parametrize("operation", [stops_iterating, exits])
async def test_an_operation_that_raises_fails_alone_whatever_it_raises(operation: Any, tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "store.db")
    calls = [store._write(operation), *(store.enqueue_rollout(number) for number in range(5))]
    first, *others = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), BOUND_S)
    assert isinstance(first, RuntimeError)
    answers = Rollout if operation is stops_iterating else Rollout | LightningStoreError  # an exit ends a transaction
    assert all(isinstance(outcome, answers) for outcome in others)
    later = await asyncio.wait_for(store.enqueue_rollout("later"), BOUND_S)
    assert await store.get_rollout_by_id(later.rollout_id) == later
    await asyncio.wait_for(store.close(), BOUND_S)


async def test_a_call_that_exits_leaves_the_thread_of_a_threaded_store_to_the_others() -> None:
    class Exiting(InMemoryLightningStore):
        async def get_worker_by_id(self, worker_id: str) -> Any:
            sys.exit(3)

    store = LightningStoreThreaded(Exiting())
    with ThreadPoolExecutor(1) as threads, pytest.raises(SystemExit):
        threads.submit(asyncio.run, store.get_worker_by_id("w")).result(BOUND_S)
    assert (await asyncio.wait_for(store.enqueue_rollout("later"), BOUND_S)).input == "later"
    await store.close()
