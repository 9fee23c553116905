"""Heartbeats of the workers of an event loop, and a look at whether what they run still counts.

One request tells the store of all runners that work on it. A thousand of them, each with requests of its own, would be
more than a client and a server can carry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

import psutil

from ..logging import Throttle
from ..store import LightningStore
from .binding import Binding
from .system_snapshot import gpus

logger = logging.getLogger(__name__)

_MIB: Final = 2**20
_AT_ONCE: Final = 100
"""Workers in one request."""


@contextmanager
def beating(bound: Binding, interval: float, *, include_gpu: bool) -> Iterator[None]:
    """Send heartbeats of a worker for the duration of a block, on the running event loop.

    Args:
        bound: the work of its runner.
        interval: seconds between two heartbeats; 0 sends none.
        include_gpu: tell of the GPUs.
    """
    if interval == 0:
        yield
        return
    hearts = _hearts.setdefault(asyncio.get_running_loop(), {})
    key = id(bound.store), interval, include_gpu
    if key not in hearts:
        hearts[key] = _Heart(bound.store, interval, include_gpu)
    heart = hearts[key]
    heart.join(bound)
    try:
        yield
    finally:
        if heart.leave(bound):
            hearts.pop(key, None)


class _Heart:
    """Beats for all runners that have joined; a worker's first heartbeat is sent at once.

    Args:
        store: hears of them.
        interval: seconds between two heartbeats.
        include_gpu: tell of the GPUs.
    """

    def __init__(self, store: LightningStore, interval: float, include_gpu: bool) -> None:
        self._store = store
        self._interval = interval
        self._include_gpu = include_gpu
        self._all: list[Binding] = []
        self._new: list[Binding] = []
        self._joined = asyncio.Event()
        self._told = Throttle()
        self._task = asyncio.ensure_future(self._beat())

    def join(self, bound: Binding) -> None:
        self._all.append(bound)
        self._new.append(bound)
        self._joined.set()

    def leave(self, bound: Binding) -> bool:
        """Return whether nobody is left, and no heartbeat is sent any more."""
        for bindings in (self._all, self._new):
            bindings[:] = [one for one in bindings if one is not bound]
        if not self._all:
            self._task.cancel()
        return not self._all

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        process = psutil.Process()
        self._measured(process)  # a share of processor time is measured from one call to the next
        due = loop.time() + self._interval
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._joined.wait(), due - loop.time())
            self._joined.clear()
            new, self._new = self._new, []
            if loop.time() >= due:
                due = loop.time() + self._interval
                new = list(self._all)
            for start in range(0, len(new), _AT_ONCE):
                await self._tell(new[start : start + _AT_ONCE], self._measured(process))

    async def _tell(self, bindings: Sequence[Binding], measured: dict[str, Any]) -> None:
        try:
            await self._store.update_many_workers(
                {one.worker_id: {"attempts": one.attempts, "failed": one.failed, **measured} for one in bindings}
            )
            await self._look_after(bindings)
        except Exception as error:  # one missed heartbeat is no reason to end a runner
            if self._told.due(repr(error)):
                others = f" and {len(bindings) - 1} others" if len(bindings) > 1 else ""
                logger.warning("heartbeat of %s%s failed: %s", bindings[0].worker_id, others, error)

    async def _look_after(self, bindings: Sequence[Binding]) -> None:
        """Break off what no longer counts."""
        under_way = [one.current for one in bindings if one.current is not None]
        if under_way:
            ids = [one.rollout.rollout_id for one in under_way]
            found = {one.rollout_id: one for one in await self._store.query_rollouts(rollout_id_in=ids)}
            for one in under_way:
                one.look_after(found.get(one.rollout.rollout_id))

    def _measured(self, process: psutil.Process) -> dict[str, Any]:
        """Return `pid`, `cpu_percent` of one core and `memory_mib` (resident) of this process, `system_cpu_percent` of
        all cores and `system_memory_percent` of the computer; `gpus` where those were asked for. Processor time is that
        since the last call. It costs well under a millisecond and waits for nothing.
        """
        return {
            "pid": os.getpid(),
            "cpu_percent": process.cpu_percent(),
            "memory_mib": round(process.memory_info().rss / _MIB, 1),
            "system_cpu_percent": psutil.cpu_percent(),
            "system_memory_percent": psutil.virtual_memory().percent,
            **({"gpus": gpus()} if self._include_gpu else {}),
        }


_hearts: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[int, float, bool], _Heart]] = WeakKeyDictionary()
"""By event loop; and by the store, the interval, and whether GPUs are told of."""
