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
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final
from weakref import WeakKeyDictionary

import psutil

from ..litagent import LitAgent
from ..logging import Throttle
from ..store import LIVE_ATTEMPT_STATUSES, LightningStore, has_ended
from ..types import AttemptedRollout, Hook, Rollout
from .attempt import AttemptRun
from .isolation import AgentProcess

logger = logging.getLogger(__name__)

_MIB: Final = 2**20
_WORKERS_PER_REQUEST: Final = 100


@dataclass(frozen=True)
class RunningAttempt:
    """The attempt of a worker."""

    rollout: AttemptedRollout
    run: AttemptRun
    halt: asyncio.Future[str]
    """Stops the attempt once it is done; its result is the reason."""

    def stop_if_over(self, stored: Rollout | None) -> None:
        """Stop the attempt if it no longer counts according to the rollout in the store."""
        reason = self._why_over(stored)
        if reason is not None and not self.halt.done() and not self.run.ending:
            number = self.rollout.attempt.sequence_id
            logger.warning("attempt %d of rollout %s is stopped: %s", number, self.rollout.rollout_id, reason)
            self.halt.set_result(reason)

    def _why_over(self, stored: Rollout | None) -> str | None:
        latest = stored.attempt if isinstance(stored, AttemptedRollout) else None
        if stored is None or latest is None or latest.attempt_id != self.rollout.attempt.attempt_id:
            return "another attempt has taken its place"
        if has_ended(stored):
            return f"its rollout has ended ({stored.status})"
        if latest.status not in LIVE_ATTEMPT_STATUSES:
            return f"the store has given it up ({latest.status})"
        return None


@dataclass
class Binding:
    """The agent, the store and the counters of one asyncio task that runs rollouts."""

    runner: Any
    agent: LitAgent[Any]
    store: LightningStore
    hooks: Sequence[Hook]
    worker_id: str
    process: AgentProcess | None
    attempts: int = 0
    failed: int = 0
    current: RunningAttempt | None = None

    @contextmanager
    def running(self, attempt: RunningAttempt) -> Iterator[None]:
        """Set `current` for the duration of a block; blocks may nest."""
        before, self.current = self.current, attempt
        try:
            yield
        finally:
            self.current = before


@contextmanager
def heartbeats_of(bound: Binding, interval: float, *, include_gpu: bool) -> Iterator[None]:
    """Send heartbeats of a worker for the duration of a block, on the running event loop.

    Args:
        bound: the worker.
        interval: seconds between two heartbeats; 0 sends none.
        include_gpu: add the memory of the GPUs.
    """
    if interval == 0:
        yield
        return
    senders = _senders.setdefault(asyncio.get_running_loop(), {})
    key = id(bound.store), interval, include_gpu
    if key not in senders:
        senders[key] = _HeartbeatSender(bound.store, interval, include_gpu)
    sender = senders[key]
    sender.add(bound)
    try:
        yield
    finally:
        if sender.remove(bound):
            senders.pop(key, None)


class _HeartbeatSender:
    """Sends the heartbeats of the added workers; the first one of a worker is sent at once."""

    def __init__(self, store: LightningStore, interval: float, include_gpu: bool) -> None:
        self._store = store
        self._interval = interval
        self._include_gpu = include_gpu
        self._all: list[Binding] = []
        self._new: list[Binding] = []
        self._added = asyncio.Event()
        self._throttle = Throttle()
        self._task = asyncio.ensure_future(self._send_regularly())

    def add(self, bound: Binding) -> None:
        self._all.append(bound)
        self._new.append(bound)
        self._added.set()

    def remove(self, bound: Binding) -> bool:
        """Remove a worker; return True if it was the last, and end."""
        for bindings in (self._all, self._new):
            bindings[:] = [other for other in bindings if other is not bound]
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
            bindings, self._new = self._new, []
            if loop.time() >= due:
                due = loop.time() + self._interval
                bindings = list(self._all)
            for start in range(0, len(bindings), _WORKERS_PER_REQUEST):
                await self._send(bindings[start : start + _WORKERS_PER_REQUEST], self._usage(process))

    async def _send(self, bindings: Sequence[Binding], usage: dict[str, Any]) -> None:
        try:
            await self._store.update_many_workers(
                {bound.worker_id: {"attempts": bound.attempts, "failed": bound.failed, **usage} for bound in bindings}
            )
            attempts = [bound.current for bound in bindings if bound.current is not None]
            if attempts:
                ids = [attempt.rollout.rollout_id for attempt in attempts]
                stored = {
                    rollout.rollout_id: rollout for rollout in await self._store.query_rollouts(rollout_id_in=ids)
                }
                for attempt in attempts:
                    attempt.stop_if_over(stored.get(attempt.rollout.rollout_id))
        except Exception as error:  # a missed heartbeat does not end the runner
            if self._throttle.due(repr(error)):
                others = f" and {len(bindings) - 1} others" if len(bindings) > 1 else ""
                logger.warning("heartbeat of %s%s failed: %s", bindings[0].worker_id, others, error)

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
