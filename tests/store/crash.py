"""Store servers that are killed under load: who loads them, and what they must still know afterwards."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mini_agentic_rl.store import LightningStore, SqlLightningStore
from mini_agentic_rl.store.http.client import LightningStoreClient
from mini_agentic_rl.types import TERMINAL_ROLLOUT_STATUSES, EnqueueRolloutRequest, RolloutConfig, Span

SILENCE = 0.5
PATIENT = RolloutConfig(
    unresponsive_seconds=SILENCE, max_attempts=100, retry_condition=["unresponsive", "timeout", "failed"]
)


class Acknowledged:
    """Keep what a store has answered, and so must still know after any crash."""

    def __init__(self) -> None:
        self.queued: set[str] = set()
        self.claimed: set[tuple[str, str]] = set()
        self.spans: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.numbers: dict[tuple[str, str], int] = defaultdict(int)
        self.succeeded: set[tuple[str, str]] = set()
        self.ended: dict[str, str] = {}

    async def produce(self, store: LightningStore) -> None:
        while True:
            requests = [EnqueueRolloutRequest(input=n, config=PATIENT) for n in range(random.randint(1, 3))]
            self.queued.update(rollout.rollout_id for rollout in await store.enqueue_many_rollouts(requests))
            await asyncio.sleep(0.005)

    async def work(self, store: LightningStore, worker_id: str) -> None:
        while True:
            if await store.wait_for_work(5):
                await self.work_once(store, worker_id)

    async def work_once(self, store: LightningStore, worker_id: str) -> None:
        rollout = await store.dequeue_rollout(worker_id)
        if rollout is None:
            return
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        assert ids not in self.claimed
        assert rollout.rollout_id not in self.ended
        self.claimed.add(ids)
        for _ in range(2):
            number = await store.get_next_span_sequence_id(*ids)
            assert number > self.numbers[ids]
            self.numbers[ids] = number
            span = Span(
                rollout_id=ids[0],
                attempt_id=ids[1],
                sequence_id=number,
                trace_id="ab" * 16,
                span_id=f"{number:016x}",
                name="call",
            )
            await store.add_span(span)
            self.spans[ids].add(span.span_id)
        await store.update_attempt(*ids, status="succeeded")
        self.succeeded.add(ids)
        seen = await store.get_rollout_by_id(ids[0])
        assert seen is not None
        if seen.status in TERMINAL_ROLLOUT_STATUSES:
            self.ended[ids[0]] = seen.status

    async def check(self, store: LightningStore) -> None:
        rollouts = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
        assert self.queued <= set(rollouts)
        for rollout_id, status in self.ended.items():
            assert rollouts[rollout_id].status == status
        for rollout_id, attempt_id in self.claimed:
            attempts = {attempt.attempt_id: attempt for attempt in await store.query_attempts(rollout_id)}
            assert attempt_id in attempts
            if (rollout_id, attempt_id) in self.succeeded:
                assert attempts[attempt_id].status == "succeeded"
            spans = {span.span_id for span in await store.query_spans(rollout_id, attempt_id)}
            assert self.spans[rollout_id, attempt_id] <= spans


def start_command(place: Path | str) -> tuple[subprocess.Popen[str], str]:
    """Start a store server on a file or a database; return its process and its address."""
    option = "--url" if "://" in str(place) else "--path"
    command = [sys.executable, "-m", "mini_agentic_rl", "store", "--port", "0", option, str(place)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        for word in line.split():
            if word.startswith("http://"):
                return process, word
    raise AssertionError(f"the server did not start: exit code {process.wait()}")


def kill(server: subprocess.Popen[str]) -> None:
    """Kill a server, and wait until it is gone."""
    server.kill()
    server.communicate()


async def _until_it_dies(call: Any) -> None:
    try:
        await call
    except AssertionError:
        raise
    except Exception:  # whatever a client says of a server that is gone; what it says is checked elsewhere
        return


async def load_until(end: Callable[[], None], address: str, acknowledged: Acknowledged, longest_s: float = 0.7) -> None:
    """Load the server at `address` for a random time of at most `longest_s`, then call `end`, which takes it away."""
    store = LightningStoreClient(address)
    tasks = [asyncio.create_task(_until_it_dies(acknowledged.produce(store)))]
    tasks += [asyncio.create_task(_until_it_dies(acknowledged.work(store, f"w{index}"))) for index in range(4)]
    await asyncio.sleep(random.uniform(0.05, longest_s))
    await asyncio.to_thread(end)
    await asyncio.wait(tasks, timeout=0.2)
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, AssertionError):
            raise outcome
    await store.close()


async def check_kept(place: Path | str, acknowledged: Acknowledged) -> None:
    """Read the store that nobody serves now: it has to know all that was acknowledged."""
    store = SqlLightningStore(place)
    await acknowledged.check(store)
    await store.close()


async def nothing_is_stuck(address: str, acknowledged: Acknowledged) -> None:
    """Work at what is left, as new workers would after the last crash: every rollout has to end well."""
    client = LightningStoreClient(address)
    ids = [rollout.rollout_id for rollout in await client.query_rollouts()]
    workers = [asyncio.create_task(acknowledged.work(client, f"last{index}")) for index in range(4)]
    ended = await client.wait_for_rollouts(rollout_ids=ids, timeout=60)
    assert len(ended) == len(ids)
    assert {rollout.status for rollout in ended} == {"succeeded"}
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    await client.close()
