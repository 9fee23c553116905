"""The processes of a run as their parent sees them: runners, which are replaced when they die, and the algorithm.

A process is ended in four steps, each after more patience than a well-behaved one needs. What a runner that died was
running goes back to the queue: its worker's record in the store says which attempt it was, and that record is written
together with the claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import signal
import time
from dataclasses import dataclass, replace

from ..runner import give_back_of_worker, worker_name
from ..runner.processes import Child, describe_exit
from ..store import LightningStore
from .events import ExecutionEvent
from .role_main import RoleSetup

logger = logging.getLogger(__name__)

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0
_GIVE_BACK_SECONDS = 10.0
_STEADY_SECONDS = 60.0
"""Seconds after which a runner that dies is started again with the first delay."""


@dataclass(frozen=True)
class Patience:
    """The seconds to wait between the steps of ending a process."""

    graceful_timeout: float
    terminate_timeout: float

    @property
    def total(self) -> float:
        """Seconds that all four steps can take."""
        return self.graceful_timeout + 2 * self.terminate_timeout + 5.0


async def stop(child: Child, patience: Patience) -> int:
    """Tell it to stop, then SIGINT, then SIGTERM, then SIGKILL; the last two to everything that it has started as well.

    Return its exit code when nothing of it is left. When cancelled, go to the last step at once.
    """
    try:
        child.send(("stop",))
        if not await _ends(child, patience.graceful_timeout):
            logger.warning(
                "%s did not stop within graceful_timeout=%g s and is interrupted", child.name, patience.graceful_timeout
            )
            child.signal(signal.SIGINT)
            if not await _ends(child, patience.terminate_timeout):
                logger.warning(
                    "%s did not stop within terminate_timeout=%g s and is ended", child.name, patience.terminate_timeout
                )
        await asyncio.to_thread(child.end, patience.terminate_timeout)
    except asyncio.CancelledError:
        child.end(0)
        raise
    return await child.exited


async def _ends(child: Child, seconds: float) -> bool:
    await asyncio.wait({child.exited}, timeout=seconds)
    return not child.running


class RunnerProcesses:
    """`n_runners` processes with one runner each."""

    def __init__(self, setup: RoleSetup, n_runners: int, patience: Patience) -> None:
        self._setup = setup
        self._n_runners = n_runners
        self._patience = patience
        self._children: dict[int, Child] = {}
        self._store: LightningStore | None = None
        self.exit_codes: dict[int, int] = {}
        """Exit code by runner, of those that ended by themselves or were stopped; one that died is replaced instead."""

    async def run(self, event: ExecutionEvent) -> None:
        """Keep the runners running until the event is set or all have ended by themselves; none is left afterwards.

        Raises:
            Exception: a runner's process cannot be started, or cannot load the bundle; the event is set then.
        """
        slots = [asyncio.ensure_future(self._keep(index, event)) for index in range(self._n_runners)]
        try:
            await asyncio.wait(slots, return_when=asyncio.FIRST_EXCEPTION)
            errors = [slot.exception() for slot in slots if slot.done() and not slot.cancelled()]
            error = next((error for error in errors if error is not None), None)
            if error is not None:
                raise error
            if not event.is_set():
                logger.info("all %d runners have ended before the algorithm", self._n_runners)
        except BaseException:
            event.set()
            await asyncio.wait(slots)
            raise
        finally:
            if self._store is not None:
                await self._store.close()

    def kill(self) -> None:
        """End all of them at once, from any thread."""
        for child in list(self._children.values()):
            child.end(0)

    async def _keep(self, index: int, event: ExecutionEvent) -> None:
        delay = _FIRST_DELAY
        stopping = asyncio.ensure_future(event.wait_async())
        try:
            while not event.is_set():
                started = time.monotonic()
                child = await Child.start(
                    f"runner-{index}", f"{__package__}.role_main:run_runner", self._setup.orphan_seconds
                )
                self._children[index] = child
                code, listening = await _watch(child, replace(self._setup, index=index), stopping, self._patience)
                if not listening.cancelled():
                    listening.result()
                died = code != 0 and not event.is_set()
                logger.log(logging.ERROR if died else logging.INFO, "runner %d %s", index, describe_exit(code))
                if code != 0:
                    await self._give_back(index, code)
                if not died:
                    self.exit_codes[index] = code
                    return
                if time.monotonic() - started > _STEADY_SECONDS:
                    delay = _FIRST_DELAY
                logger.info("runner %d is started again in %g s", index, delay)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(asyncio.shield(stopping), delay)
                delay = min(2 * delay, _LONGEST_DELAY)
        finally:
            stopping.cancel()

    async def _give_back(self, index: int, code: int) -> None:
        worker_id = worker_name(index, self._setup.worker_label)
        try:
            if self._store is None:
                self._store = pickle.loads(self._setup.store)
            giving = give_back_of_worker(self._store, worker_id, f"its runner's process {describe_exit(code)}")
            if await asyncio.wait_for(giving, _GIVE_BACK_SECONDS):
                logger.info("what %s was running is queued again", worker_id)
        except Exception as error:  # the store is out of reach: its health check will find the attempt
            logger.warning("what %s was running could not be given back: %r", worker_id, error)


class AlgorithmProcess:
    """The process that runs the algorithm once. What it keeps in memory stays there."""

    def __init__(self, setup: RoleSetup, patience: Patience) -> None:
        self._setup = setup
        self._patience = patience
        self._child: Child | None = None
        self.exit_code: int | None = None

    async def run(self, event: ExecutionEvent) -> None:
        """Run it to its end, or stop it when the event is set; the event is set afterwards.

        Raises:
            Exception: what the algorithm raised: of a class of that name, caused by its traceback.
            RuntimeError: the process died.
        """
        stopping = asyncio.ensure_future(event.wait_async())
        try:
            self._child = child = await Child.start(
                "algorithm", f"{__package__}.role_main:run_algorithm", self._setup.orphan_seconds
            )
            self.exit_code, listening = await _watch(child, self._setup, stopping, self._patience)
            if listening.cancelled():
                return
            listening.result()
            if self.exit_code != 0:
                raise RuntimeError(f"the algorithm's process {describe_exit(self.exit_code)}")
        finally:
            stopping.cancel()
            event.set()

    def kill(self) -> None:
        """End it at once, from any thread."""
        if self._child is not None:
            self._child.end(0)


async def _watch(
    child: Child, setup: RoleSetup, stopping: asyncio.Future[None], patience: Patience
) -> tuple[int, asyncio.Future[None]]:
    """Let a process play its role until it ends or is to stop; return its exit code once nothing of it is left.

    The future holds what the process sent: an error, or nothing; it is cancelled where the process was stopped.
    """
    child.send(setup)
    listening = asyncio.ensure_future(_listen(child))
    try:
        await asyncio.wait({listening, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        listening.cancel()  # nothing, where it is done
        code = await stop(child, patience)
    return code, listening


async def _listen(child: Child) -> None:
    """Wait until the process has ended.

    Raises:
        Exception: what it sent: its bundle could not be loaded, or the algorithm failed.
    """
    with contextlib.suppress(EOFError):
        _, failure = await child.receive()
        raise failure.as_exception()
