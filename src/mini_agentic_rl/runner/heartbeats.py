"""Heartbeats of the workers on an event loop, and the check whether the attempt of a worker still counts.

One request carries the heartbeats of up to 100 workers, because a thousand requests would overload the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final
from weakref import WeakKeyDictionary

import psutil

from ..logging import Throttle
from ..store import LightningStore
from .attempt import Worker

logger = logging.getLogger(__name__)

_MIB: Final = 2**20
_WORKERS_PER_REQUEST: Final = 100


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
            **({"gpus": gpu_memory()} if self._include_gpu else {}),
        }


_senders: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[int, float, bool], _HeartbeatSender]] = (
    WeakKeyDictionary()
)
"""By event loop; then by store id, interval and `include_gpu`."""


def gpu_memory() -> list[dict[str, Any]]:
    """Return name and memory of each CUDA device; an empty list without torch."""
    try:
        torch = import_module("torch")  # a runner needs it only for this
    except ImportError:
        return []
    gpus = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        gpus.append(
            {
                "gpu": torch.cuda.get_device_name(index),
                "mem_used_mb": round((total - free) / _MIB),
                "mem_total_mb": round(total / _MIB),
            }
        )
    return gpus
