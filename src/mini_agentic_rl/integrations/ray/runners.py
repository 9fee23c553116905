"""The runners of a run on Ray: scaled to the work, replaced when they die, ended with the run.

A runner without free resources is queued, which Ray's autoscaler sees. The rollout of a runner that died is requeued:
its worker's record in the store names the attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from ...errors import UserError
from ...execution.base import ExecutionEvent
from ...execution.client_server import Patience
from ...execution.roles import Backoff
from ...logging import Throttle
from ...processes import RemoteFailure
from ...runner import give_back_of_worker, worker_name
from ...store import LightningStore
from .cluster import ActorLostError, Place, RayActor, RayCluster, RunnerActor, RunnerSetup

# Autoscaling: up at once, down only after a delay.


class Scaling:
    """As many runners as there are unfinished rollouts, within bounds.

    The number falls to the maximum needed within the last `idle_seconds`: between two steps of a training nothing is
    queued, and runners that end then would have to be restarted soon.
    """

    def __init__(self, least: int, most: int, idle_seconds: float) -> None:
        self.least = min(least, most)
        self.most = most
        self._idle_seconds = idle_seconds
        self._needs: deque[tuple[float, int]] = deque()
        """(time, need) pairs with decreasing needs; the first is the maximum of the last `idle_seconds`."""

    def wanted(self, unfinished: int, now: float) -> int:
        """Return the target number of runners at the time `now`, in seconds of a monotonic clock."""
        need = min(max(unfinished, self.least), self.most)
        while self._needs and self._needs[-1][1] <= need:
            self._needs.pop()
        self._needs.append((now, need))
        while self._needs[0][0] < now - self._idle_seconds:
            self._needs.popleft()
        return self._needs[0][1]


logger = logging.getLogger(__name__)


_LOOK_SECONDS: Final = 1.0
_MOST_FAILED_STARTS: Final = 5
"""Consecutive failed starts, without any success before, after which the run fails."""
_WAITING_SECONDS: Final = 20.0
"""Seconds without any runner after which a warning says what they wait for."""
_LAST_WORDS_SECONDS: Final = 2.0


@dataclass(eq=False)
class _Slot:
    """One runner, and the actor that currently runs it."""

    index: int
    retired: asyncio.Future[None]
    """Done once the runner is no longer needed."""
    task: asyncio.Task[bool] | None = None
    """Its result is True if the runner has ended by itself."""
    actor: RayActor | None = None
    place: Place | None = None
    generation: int = 0


@dataclass
class RayRunners:
    """The actors of one run. `kill` may be called from any thread, everything else from one event loop."""

    cluster: RayCluster
    setup: RunnerSetup
    scaling: Scaling
    patience: Patience
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._ended = 0
        self._placed = False
        self._failed_starts = 0
        self._shared_setup: Any = None
        self._store: LightningStore | None = None
        self._told = Throttle()

    async def run(self, event: ExecutionEvent) -> None:
        """Keep runners until the event is set or all have ended by themselves; none is left afterwards.

        Raises:
            Exception: a runner cannot be started, or cannot load the bundle; the event is set then.
        """
        stopping = asyncio.ensure_future(event.wait_async())
        self._store = pickle.loads(self.setup.store)
        self._shared_setup = self.cluster.put(self.setup)
        try:
            await self._run(stopping)
        except BaseException:
            event.set()
            await asyncio.gather(stopping, *self._tasks(), return_exceptions=True)
            raise
        finally:
            stopping.cancel()
            await self._store.close()

    def kill(self) -> None:
        """End all of them at once, from any thread."""
        for slot in list(self._slots.values()):
            if slot.actor is not None:
                slot.actor.end()

    def _tasks(self) -> list[asyncio.Task[bool]]:
        return [slot.task for slot in self._slots.values() if slot.task is not None]

    async def _run(self, stopping: asyncio.Future[None]) -> None:
        unfinished, alone_since = 0, time.monotonic()
        while not stopping.done() and self._ended < self.scaling.most:
            unfinished = await self._unfinished(unfinished)
            self._scale(self.scaling.wanted(unfinished, time.monotonic()), stopping)
            watched: set[asyncio.Future[Any]] = {stopping, *self._tasks()}
            await asyncio.wait(watched, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            self._collect()
            if not self._slots or any(slot.place is not None for slot in self._slots.values()):
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > _WAITING_SECONDS and self._told.due("waiting"):
                logger.warning("no runner has a place yet: %s", self.cluster.why_waiting(self.cpus, self.gpus))
        if not stopping.done():
            logger.info("all %d runners have ended before the algorithm", self._ended)
        while self._slots:
            await asyncio.wait(self._tasks())
            self._collect()

    def _collect(self) -> None:
        """Remove runners that have ended; raises the error of one that could not be started."""
        for slot in list(self._slots.values()):
            if slot.task is not None and slot.task.done():
                del self._slots[slot.index]
                self._ended += slot.task.result()

    def _scale(self, wanted: int, stopping: asyncio.Future[None]) -> None:
        """Start missing runners, and retire surplus ones, first those that are still queued."""
        wanted = min(wanted, self.scaling.most - self._ended)
        here = [slot for slot in self._slots.values() if not slot.retired.done()]
        for _ in range(wanted - len(here)):
            index = next(index for index in range(len(self._slots) + 1) if index not in self._slots)
            slot = self._slots[index] = _Slot(index, asyncio.get_running_loop().create_future())
            slot.task = asyncio.ensure_future(self._keep(slot, stopping))
        surplus = sorted(here, key=lambda slot: (slot.place is None, slot.index), reverse=True)
        for slot in surplus[: max(0, len(here) - wanted)]:
            logger.debug("runner %d is not needed any more", slot.index)
            slot.retired.set_result(None)

    async def _unfinished(self, before: int) -> int:
        """Count the unfinished rollouts; return `before` if the store cannot be reached."""
        assert self._store is not None
        try:
            unfinished = await self._store.query_rollouts(
                status_in=["queuing", "requeuing", "preparing", "running"], limit=1
            )
        except Exception as error:
            if self._told.due(repr(error)):
                logger.warning("the store cannot be queried for unfinished rollouts: %s", error)
            return before
        return unfinished.total

    async def _keep(self, slot: _Slot, stopping: asyncio.Future[None]) -> bool:
        """Run the runner, and restart it when it dies; return True if it has ended by itself."""
        backoff = Backoff()
        ends: set[asyncio.Future[Any]] = {stopping, slot.retired}
        while not any(end.done() for end in ends):
            started = time.monotonic()
            try:
                return await self._run_once(slot, stopping)
            except ActorLostError as lost:
                place, slot.place = slot.place, None
                await self._lost(slot, place, str(lost))
            delay = backoff.after_run(time.monotonic() - started)
            if not any(end.done() for end in ends):
                logger.info("runner %d is started again in %g s", slot.index, delay)
            await asyncio.wait(ends, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
        return False

    async def _run_once(self, slot: _Slot, stopping: asyncio.Future[None]) -> bool:
        slot.generation += 1
        actor = slot.actor = self.cluster.start(
            RunnerActor,
            self._shared_setup,
            slot.index,
            self._label(slot),
            cpus=self.cpus,
            gpus=self.gpus,
        )
        ends: set[asyncio.Future[Any]] = {stopping, slot.retired}
        try:
            loading = asyncio.ensure_future(actor.call("load"))
            await asyncio.wait({loading, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                loading.cancel()
                return False
            place = loading.result()
            if isinstance(place, RemoteFailure):
                raise place.as_exception()
            slot.place, self._placed, self._failed_starts = place, True, 0
            logger.info("runner %d runs on %s (process %d)", slot.index, place.host, place.pid)
            running = asyncio.ensure_future(actor.call("run"))
            await asyncio.wait({running, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and not stopping.done():
                await actor.call("retire")
                await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await self._stop(slot, actor, running)
                return False
            running.result()
            return not slot.retired.done() and not stopping.done()
        finally:
            actor.end()
            slot.actor = None

    async def _stop(self, slot: _Slot, actor: RayActor, running: asyncio.Future[Any]) -> None:
        """Stop a runner; kill it with its child processes if it does not stop in time."""
        grace = self.patience.graceful_timeout
        actor.tell("stop")
        await asyncio.wait({running}, timeout=grace)
        if running.done():
            running.result()
            return
        running.cancel()
        logger.warning("runner %d did not stop within graceful_timeout=%g s and is killed", slot.index, grace)
        with contextlib.suppress(asyncio.TimeoutError, ActorLostError):
            await asyncio.wait_for(actor.call("end_others"), _LAST_WORDS_SECONDS)
        actor.end()
        await self._give_back(slot, "its runner did not stop and was killed")

    async def _lost(self, slot: _Slot, place: Place | None, reason: str) -> None:
        """Log that a runner is lost, and requeue its rollout.

        Raises:
            UserError: none could ever be started.
        """
        if place is None:
            self._failed_starts += 1
            if not self._placed and self._failed_starts >= _MOST_FAILED_STARTS:
                raise UserError(f"no runner could be started on Ray: {reason}", setting="runner_env")
            logger.error("runner %d could not be started, and is tried again: %s", slot.index, reason)
            return
        logger.error("runner %d on %s is lost: %s", slot.index, place.host, reason)
        await self._give_back(slot, f"its runner on {place.host} was lost: {reason}")

    async def _give_back(self, slot: _Slot, reason: str) -> None:
        assert self._store is not None
        await give_back_of_worker(self._store, worker_name(slot.index, self._label(slot)), reason)

    def _label(self, slot: _Slot) -> str | None:
        """Return a new worker name for each actor: a lost actor may still run, and its calls are ignored."""
        label = self.setup.run_label
        if slot.generation == 1:
            return label
        return str(slot.generation) if label is None else f"{label}-{slot.generation}"
