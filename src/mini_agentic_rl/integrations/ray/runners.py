"""The runners of a run on Ray: started with it, replaced when they die, ended with it.

A runner without free resources is queued, which Ray's autoscaler sees. The rollout of a runner that died is requeued:
its worker's record in the store names the attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    actor: RayActor | None = None
    place: Place | None = None
    generation: int = 0


@dataclass
class RayRunners:
    """The actors of one run. `kill` may be called from any thread, everything else from one event loop."""

    cluster: RayCluster
    setup: RunnerSetup
    n_runners: int
    patience: Patience
    cpus: float = 1.0
    gpus: float = 0.0
    _slots: list[_Slot] = field(init=False)

    def __post_init__(self) -> None:
        self._slots = [_Slot(index) for index in range(self.n_runners)]
        self._placed = False
        self._failed_starts = 0
        self._shared_setup: Any = None
        self._store: LightningStore | None = None
        self._throttle = Throttle()

    async def run(self, event: ExecutionEvent) -> None:
        """Keep runners until the event is set or all have ended by themselves; none is left afterwards."""
        stopping = asyncio.ensure_future(event.wait_async())
        self._store = pickle.loads(self.setup.store)
        self._shared_setup = self.cluster.put(self.setup)
        runners = [asyncio.ensure_future(self._keep(slot, stopping)) for slot in self._slots]
        try:
            await self._watch(runners, stopping)
        except BaseException:
            event.set()
            await asyncio.gather(stopping, *runners, return_exceptions=True)
            raise
        finally:
            stopping.cancel()
            await self._store.close()

    def kill(self) -> None:
        """End all of them at once, from any thread."""
        for slot in self._slots:
            if slot.actor is not None:
                slot.actor.end()

    async def _watch(self, runners: Sequence[asyncio.Future[None]], stopping: asyncio.Future[None]) -> None:
        """Wait until all runners have ended; raise the error of the first that could not be started."""
        alone_since = time.monotonic()
        running: set[asyncio.Future[Any]] = set(runners)
        while running:
            watched = running if stopping.done() else running | {stopping}
            await asyncio.wait(watched, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for runner in runners:
                if runner.done():
                    runner.result()
                    running.discard(runner)
            if any(slot.place is not None for slot in self._slots):
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > _WAITING_SECONDS and self._throttle.due("waiting"):
                logger.warning("no runner has a place yet: %s", self.cluster.why_waiting(self.cpus, self.gpus))
        if not stopping.done():
            logger.info("all %d runners have ended before the algorithm", self.n_runners)

    async def _keep(self, slot: _Slot, stopping: asyncio.Future[None]) -> None:
        """Run the runner until it ends by itself or has to stop, and restart it when it dies."""
        backoff = Backoff()
        while not stopping.done():
            started = time.monotonic()
            try:
                await self._run_once(slot, stopping)
                return
            except ActorLostError as lost:
                place, slot.place = slot.place, None
                await self._lost(slot, place, str(lost))
            delay = backoff.after_run(time.monotonic() - started)
            if not stopping.done():
                logger.info("runner %d is started again in %g s", slot.index, delay)
            await asyncio.wait({stopping}, timeout=delay)

    async def _run_once(self, slot: _Slot, stopping: asyncio.Future[None]) -> None:
        slot.generation += 1
        actor = slot.actor = self.cluster.start(
            RunnerActor,
            self._shared_setup,
            slot.index,
            self._label(slot),
            cpus=self.cpus,
            gpus=self.gpus,
        )
        try:
            loading = asyncio.ensure_future(actor.call("load"))
            await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                loading.cancel()
                return
            place = loading.result()
            if isinstance(place, RemoteFailure):
                raise place.as_exception()
            slot.place, self._placed, self._failed_starts = place, True, 0
            logger.info("runner %d runs on %s (process %d)", slot.index, place.host, place.pid)
            running = asyncio.ensure_future(actor.call("run"))
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            else:
                await self._stop(slot, actor, running)
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
        """Log that a runner is lost, and requeue its rollout."""
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
