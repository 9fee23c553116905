"""The workers of runners in the store: their names, their heartbeats, and the rollouts of lost workers.

The workers of one run are `runner-0`, `runner-1` and so on. Where several runs share a store, each gives its processes
a label: `runner-0@label`.

One request carries the heartbeats of up to 100 workers, because a thousand requests would overload the server. With the
heartbeats the runner checks whether the attempts of its workers still count.

A worker is silent when its heartbeats stop. The time is measured by the local monotonic clock, and only while the store
answers, so neither clock skew nor an outage of the store makes a worker silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final
from weakref import WeakKeyDictionary

import psutil

from ..litagent import LitAgent
from ..logging import Throttle
from ..store import LIVE_ATTEMPT_STATUSES, LightningStore
from ..types import Hook

logger = logging.getLogger(__name__)

_MIB: Final = 2**20
_WORKERS_PER_REQUEST: Final = 100
_GIVE_BACK_SECONDS: Final = 10.0
_label: list[str] = []


def set_worker_label(label: str | None) -> None:
    """Name the workers of this process with `label` from now on."""
    _label[:] = [] if label is None else [label]


def worker_name(number: int, label: str | None = None) -> str:
    """Return the name of a runner's worker under `label`, or under the label of this process."""
    chosen = label if label is not None else (_label[0] if _label else None)
    return f"runner-{number}" if chosen is None else f"runner-{number}@{chosen}"


@dataclass
class Worker:
    """A worker of the store: one asyncio task that runs rollouts, with its agent, its store and its counters."""

    runner: Any
    agent: LitAgent[Any]
    store: LightningStore
    hooks: Sequence[Hook]
    worker_id: str
    attempts: int = 0
    failed: int = 0
    current: Any = None
    """The `AttemptRun` under way."""


@contextmanager
def heartbeats_of(worker: Worker, interval: float, *, include_gpu: bool) -> Iterator[None]:
    """Send heartbeats of a worker for the duration of a block, on the running event loop.

    Args:
        worker: the worker.
        interval: seconds between two heartbeats; 0 sends none.
        include_gpu: add the memory of the GPUs.
    """
    if interval == 0:
        yield
        return
    senders = _senders.setdefault(asyncio.get_running_loop(), {})
    key = id(worker.store), interval, include_gpu
    if key not in senders:
        senders[key] = _HeartbeatSender(worker.store, interval, include_gpu)
    sender = senders[key]
    sender.add(worker)
    try:
        yield
    finally:
        if sender.remove(worker):
            senders.pop(key, None)


class _HeartbeatSender:
    """Sends the heartbeats of the added workers; the first one of a worker is sent at once."""

    def __init__(self, store: LightningStore, interval: float, include_gpu: bool) -> None:
        self._store = store
        self._interval = interval
        self._include_gpu = include_gpu
        self._all: list[Worker] = []
        self._new: list[Worker] = []
        self._added = asyncio.Event()
        self._throttle = Throttle()
        self._task = asyncio.ensure_future(self._send_regularly())

    def add(self, worker: Worker) -> None:
        self._all.append(worker)
        self._new.append(worker)
        self._added.set()

    def remove(self, worker: Worker) -> bool:
        """Remove a worker; return True if it was the last, and end."""
        for workers in (self._all, self._new):
            workers[:] = [other for other in workers if other is not worker]
        if not self._all:
            self._task.cancel()
        return not self._all

    async def _send_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        process = psutil.Process()
        self._usage(process)  # psutil measures processor time since the last call
        due = loop.time() + self._interval
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._added.wait(), due - loop.time())
            self._added.clear()
            workers, self._new = self._new, []
            if loop.time() >= due:
                due = loop.time() + self._interval
                workers = list(self._all)
            for start in range(0, len(workers), _WORKERS_PER_REQUEST):
                await self._send(workers[start : start + _WORKERS_PER_REQUEST], self._usage(process))

    async def _send(self, workers: Sequence[Worker], usage: dict[str, Any]) -> None:
        try:
            counts = {each.worker_id: {"attempts": each.attempts, "failed": each.failed} for each in workers}
            await self._store.update_many_workers({name: {**count, **usage} for name, count in counts.items()})
            attempts = [worker.current for worker in workers if worker.current is not None]
            if attempts:
                ids = [attempt.rollout.rollout_id for attempt in attempts]
                rollouts = await self._store.query_rollouts(rollout_id_in=ids)
                stored = {rollout.rollout_id: rollout for rollout in rollouts}
                for attempt in attempts:
                    attempt.stop_if_over(stored.get(attempt.rollout.rollout_id))
        except Exception as error:  # a missed heartbeat does not end the runner
            if self._throttle.due(repr(error)):
                others = f" and {len(workers) - 1} others" if len(workers) > 1 else ""
                logger.warning("heartbeat of %s%s failed: %s", workers[0].worker_id, others, error)

    def _usage(self, process: psutil.Process) -> dict[str, Any]:
        """Return the load of this process (`cpu_percent` of one core, resident `memory_mib`) and of the computer."""
        return {
            "pid": os.getpid(),
            "cpu_percent": process.cpu_percent(),
            "memory_mib": round(process.memory_info().rss / _MIB, 1),
            "system_cpu_percent": psutil.cpu_percent(),
            "system_memory_percent": psutil.virtual_memory().percent,
            **({"gpus": _gpu_memory()} if self._include_gpu else {}),
        }


_senders: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[int, float, bool], _HeartbeatSender]] = (
    WeakKeyDictionary()
)
"""By event loop; then by store id, interval and `include_gpu`."""


def _gpu_memory() -> list[dict[str, Any]]:
    """Return name and memory of each CUDA device; an empty list without torch."""
    try:
        torch = import_module("torch")  # a runner needs it only for this
    except ImportError:
        return []
    gpus = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name, used = torch.cuda.get_device_name(index), total - free
        gpus.append({"gpu": name, "mem_used_mb": round(used / _MIB), "mem_total_mb": round(total / _MIB)})
    return gpus


async def give_back(store: LightningStore, rollout_id: str, attempt_id: str, reason: str) -> None:
    """End the attempt as `failed` for this reason, and queue its rollout again.

    If a later attempt exists, the rollout is left alone. Nothing happens if the attempt has ended or was declared
    unresponsive: the store has then decided about the rollout already.
    """
    attempts = list(await store.query_attempts(rollout_id))
    attempt = next((each for each in attempts if each.attempt_id == attempt_id), None)
    if attempt is None or attempt.status not in LIVE_ATTEMPT_STATUSES:
        return
    if attempt is attempts[-1]:
        logger.debug("rollout %s goes back to the queue: %s", rollout_id, reason)
        await store.update_rollout(rollout_id, status="requeuing")
    await store.update_attempt(rollout_id, attempt_id, status="failed", metadata={**attempt.metadata, "error": reason})


async def give_back_of_worker(store: LightningStore, worker_id: str, reason: str) -> None:
    """Give back the rollout of a worker that has died, if it ran one. An error of the store is logged."""

    async def give() -> None:
        worker = await store.get_worker_by_id(worker_id)
        if worker is not None and worker.current_rollout_id is not None and worker.current_attempt_id is not None:
            await give_back(store, worker.current_rollout_id, worker.current_attempt_id, reason)

    try:
        await asyncio.wait_for(give(), _GIVE_BACK_SECONDS)
    except Exception as error:  # the store is out of reach: its health check will find the attempt
        logger.warning("the rollout of %s could not be given back: %r", worker_id, error)


_CHECKS = 6
"""Checks of the workers within `silent_seconds`."""


class SilentWorkers:
    """Gives back the rollouts of silent workers.

    Args:
        store: the store of the workers.
        silent_seconds: time without a heartbeat after which a worker with a rollout counts as lost.
        now: a monotonic clock, in seconds.
    """

    def __init__(self, store: LightningStore, silent_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._silent_seconds = silent_seconds
        self._now = now
        self._last_check = now()
        self._heard: dict[str, tuple[float, float]] = {}
        """By worker: the time of its latest heartbeat in the store, and the local time at which it was first seen."""

    async def check(self) -> None:
        """Check all workers once.

        Raises:
            Exception: the store does not answer.
        """
        workers = await self._store.query_workers()
        now = self._now()
        if now - self._last_check > self._silent_seconds / 2:  # the store did not answer meanwhile
            self._heard.clear()
        self._last_check = now
        for worker in workers:
            beat = worker.last_heartbeat_time
            if beat is None or worker.current_rollout_id is None or worker.current_attempt_id is None:
                self._heard.pop(worker.worker_id, None)
                continue
            known, since = self._heard.get(worker.worker_id, (beat, now))
            if known != beat:
                since = now
            self._heard[worker.worker_id] = (beat, since)
            if now - since > self._silent_seconds:
                reason = f"its runner {worker.worker_id} has sent no heartbeat for {self._silent_seconds:g} s"
                ids = worker.current_rollout_id, worker.current_attempt_id
                await give_back(self._store, *ids, reason)


async def watch_workers(store: LightningStore, silent_seconds: float) -> None:
    """Give back the rollouts of workers that fall silent, until cancelled."""
    workers, throttle = SilentWorkers(store, silent_seconds), Throttle()
    while True:
        await asyncio.sleep(silent_seconds / _CHECKS)
        try:
            await workers.check()
        except Exception as error:  # the store does not answer: try again
            if throttle.due(repr(error)):
                logger.warning("could not check for lost runners: %s", error)
