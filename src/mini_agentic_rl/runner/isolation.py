"""Calls of the user's code with a time limit, in this process or in another one.

In this process (`call_bounded`), async code runs as a task, which is cancelled at a time-out. Sync code runs in a
daemon thread, which cannot be stopped: after the time-out it is abandoned, and spans that it emits later are dropped.

In another process (`AgentProcess`), an agent is killed at a time-out with all of its descendants. The process starts
when there is work, serves later calls too, and is replaced after it has died. It gets a copy of the agent made when the
run began, so changes of the agent's state stay in it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import UserError
from ..litagent import LitAgent, RolloutOutcome
from ..processes import Child, RemoteFailure, describe_exit, dumps, in_daemon_thread, settle
from ..store import STORE_METHODS, LightningStore
from ..tracer import Trace, Tracer
from ..types import AttemptedRollout, NamedResources, Span

logger = logging.getLogger(__name__)

_CANCEL_GRACE_SECONDS = 1.0
ORPHAN_SECONDS = 0.5
"""Seconds that the process of an agent may take to end after its runner has ended."""


class OutOfTimeError(TimeoutError):
    """A call took longer than its limit."""


class StoppedError(Exception):
    """The run ended during the call."""


class ExitedError(Exception):
    """The called code tried to end the process, or cancelled its own task."""


async def call_bounded(
    func: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    *,
    deadline: float | None,
    stop: asyncio.Future[Any] | None,
) -> Any:
    """Call `func`, sync or async, and return its result.

    Args:
        func: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        deadline: time of the event loop by which it must have returned; None is no limit.
        stop: the call is abandoned once this future is done; its result, if it is a string, is the reason.

    Raises:
        OutOfTimeError: the deadline passed. The call was cancelled, or its thread abandoned.
        StoppedError: `stop` was done first.
        ExitedError: the code called `sys.exit`, or cancelled the task that it runs in.
        Exception: whatever the code raised.
    """
    work = asyncio.ensure_future(_invoke(func, args, kwargs))
    work.add_done_callback(_retrieve)
    try:
        await wait_until_done(work, stop, deadline)
    except asyncio.CancelledError:
        work.cancel()
        raise
    if work.cancelled():
        raise ExitedError(f"{label(func)} cancelled itself")
    if work.done():
        return work.result()
    work.cancel()
    await asyncio.wait({work}, timeout=_CANCEL_GRACE_SECONDS)
    if not work.done():
        logger.warning("%s ignores its cancellation and goes on in the background", label(func))
    if stop is not None and stop.done():
        raise StoppedError(why_stopped(stop))
    raise OutOfTimeError(f"{label(func)} did not return in time")


async def wait_until_done(
    work: asyncio.Future[Any], stop: asyncio.Future[Any] | None, deadline: float | None = None
) -> None:
    """Wait until `work` or `stop` is done, or the deadline (time of the event loop) has passed."""
    timeout = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
    futures = {work} if stop is None else {work, stop}
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


async def _invoke(func: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        if inspect.iscoroutinefunction(func):
            return await func(*args, **kwargs)
        result = await in_daemon_thread(partial(func, *args, **kwargs), f"call-{label(func)}")
        return await result if inspect.isawaitable(result) else result
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitedError(f"{label(func)} raised {type(error).__name__}: {error}") from error


def why_stopped(stop: asyncio.Future[Any]) -> str:
    """Return the reason for which a call was stopped."""
    return str(stop.result() or "the run was stopped")


def label(func: Callable[..., Any]) -> str:
    """Return the name of a function for messages."""
    return str(getattr(func, "__qualname__", type(func).__name__))


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


@dataclass(frozen=True)
class AgentCall:
    """Arguments of a call of the agent in its process, and the trace that it continues."""

    rollout: AttemptedRollout
    resources: NamedResources
    trace_root: Any
    recorded: list[Span]


@dataclass(frozen=True)
class AgentReturn:
    """Outcome of a call, and the rollout's metadata after it."""

    outcome: RolloutOutcome
    metadata: dict[str, Any]


_START_SECONDS = 120.0
_TERM_SECONDS = 1.0
_LEAVE_SECONDS = 2.0
_ADVICE = (
    "Make it where it is used, inside the agent's method; or define the agent in a module of its own, which is then "
    "imported there; or use `isolation='thread'`."
)


class AgentProcess:
    """The process in which a runner calls its agent. All methods belong to one event loop."""

    def __init__(self, agent: LitAgent[Any], tracer: Tracer, store: LightningStore, worker_id: str) -> None:
        self._agent = agent
        self._tracer = tracer
        self._store = store
        self._worker_id = worker_id
        self._setup: bytes | None = None
        self._child: Child | None = None
        self._serving: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self._ready: asyncio.Future[None] | None = None
        self._result: asyncio.Future[AgentReturn | RemoteFailure] | None = None
        self._trace: Trace | None = None
        self._ending: list[threading.Thread] = []
        self._obstacle: Exception | None = None

    @property
    def running(self) -> bool:
        """True if the process is up and waits for a call."""
        return self._child is not None and self._child.running

    async def start(self, stop: asyncio.Future[Any] | None = None) -> Child:
        """Start the process unless it runs; return it once the agent is loaded, or `stop` is done.

        Raises:
            UserError: the agent cannot be pickled.
            Exception: whatever importing the agent raised.
            ExitedError: the process died meanwhile.
            TimeoutError: importing the agent took too long.
        """
        if self._child is not None and self._child.running:
            return self._child
        self.discard()
        if self._setup is None:
            self._setup = dumps((self._agent, self._tracer), "(agent, tracer)", _ADVICE)
        self._child = child = await Child.start(self._worker_id, f"{__package__}.agent_worker:main", ORPHAN_SECONDS)
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        capabilities = self._store.capabilities
        otlp_endpoint = self._store.otlp_traces_endpoint() if capabilities["otlp_traces"] else None
        child.send((self._setup, capabilities, otlp_endpoint, self._worker_id))
        self._serving = asyncio.ensure_future(self._serve(child))
        try:
            await wait_until_done(self._ready, stop, loop.time() + _START_SECONDS)
        except asyncio.CancelledError:
            self.discard()
            raise
        if self._ready.done():
            if self._ready.exception() is not None:
                self.discard()
            self._ready.result()
        elif stop is None or not stop.done():
            self.discard()
            raise TimeoutError(f"importing the agent in its process took over {_START_SECONDS:g} s")
        return child

    async def prepare(self, stop: asyncio.Future[Any] | None) -> None:
        """Start the process before an attempt, whose time limit does not cover it; the next call raises the error."""
        try:
            await self.start(stop)
        except Exception as error:
            self._obstacle = error

    async def call(
        self,
        rollout: AttemptedRollout,
        resources: NamedResources,
        trace: Trace,
        *,
        deadline: float | None,
        stop: asyncio.Future[Any] | None,
    ) -> RolloutOutcome:
        """Call the agent; its changes of the metadata are copied to `rollout.metadata`.

        Args:
            rollout: the rollout with its attempt.
            resources: the resources of the rollout, by name.
            trace: the open trace, which gets the spans of the agent.
            deadline: time of the event loop by which it must have returned; None is no limit.
            stop: the call is abandoned once this future is done.

        Raises:
            OutOfTimeError: the deadline passed; the process is killed.
            StoppedError: `stop` was done first; the process is killed.
            ExitedError: the process has died, or the agent called `sys.exit`.
            Exception: whatever the agent raised, with the same class name and text, caused by its traceback.
        """
        if self._obstacle is not None:
            error, self._obstacle = self._obstacle, None
            raise error
        child = await self.start(stop)
        if stop is not None and stop.done():
            raise StoppedError(why_stopped(stop))
        call = AgentCall(rollout, resources, trace.root, list(trace.recorded))
        self._result, self._trace = asyncio.get_running_loop().create_future(), trace
        try:
            child.send(("run", dumps(call, "the call", "Use tasks and resources that can be pickled.")))
            await wait_until_done(self._result, stop, deadline)
            if not self._result.done():
                self.discard()
                if stop is not None and stop.done():
                    raise StoppedError(why_stopped(stop))
                raise OutOfTimeError("the agent did not return in time")
            result = self._result.result()
        except asyncio.CancelledError:
            self.discard()
            raise
        finally:
            self._result = self._trace = None
        if isinstance(result, RemoteFailure):
            raise result.as_exception()
        rollout.metadata.update(result.metadata)
        return result.outcome

    def discard(self) -> None:
        """End the process in the background; the next call starts another one."""
        child = self._release()
        if child is not None:
            thread = threading.Thread(target=child.end, args=(_TERM_SECONDS,), name=f"{child.name}-end")
            self._ending = [*(each for each in self._ending if each.is_alive()), thread]
            thread.start()

    async def close(self) -> None:
        """Let the process end by itself, then end it and its descendants. All have ended when this returns."""
        child = self._release()
        if child is not None:
            child.hang_up()
            await asyncio.wait({child.exited}, timeout=_LEAVE_SECONDS)
            await asyncio.to_thread(child.end, _TERM_SECONDS)
        for thread in self._ending:
            await asyncio.to_thread(thread.join)

    def close_at_once(self) -> None:
        """End the process and wait for it. Blocks."""
        self.discard()
        for thread in self._ending:
            thread.join()

    def _release(self) -> Child | None:
        if self._serving is not None:
            self._serving.cancel()
        for answer in self._answers:
            answer.cancel()
        child, self._child, self._serving = self._child, None, None
        return child

    async def _serve(self, child: Child) -> None:
        try:
            while True:
                kind, *values = await child.receive()
                if kind == "span":
                    self._take_span(*values)
                elif kind == "call":
                    answer = asyncio.ensure_future(self._answer(child, *values))
                    self._answers.add(answer)
                    answer.add_done_callback(self._answers.discard)
                elif kind == "done":
                    settle(self._result, values[0])
                elif kind == "ready":
                    settle(self._ready, None)
                else:
                    settle(self._ready, error=values[0].as_exception())
        except EOFError:
            code = await child.exited
            settle(self._ready, error=ExitedError(f"its process {describe_exit(code)} while the agent was imported"))
            settle(self._result, error=ExitedError(f"its process {describe_exit(code)}"))

    def _take_span(self, span: Any) -> None:
        trace = self._trace
        if trace is not None and span.attempt_id == trace.attempt_id:
            trace.record(span)
        else:
            logger.warning("span %r came after attempt %s had ended and is dropped", span.name, span.attempt_id)

    async def _answer(self, child: Child, number: int, name: str, args: Any, kwargs: Any) -> None:
        try:
            if name not in STORE_METHODS:
                raise ValueError(f"a store has no method {name!r}")
            reply = (True, await getattr(self._store, name)(*args, **kwargs))
        except Exception as error:
            reply = (False, error)
        try:
            child.send(("reply", number, *reply))
        except Exception as error:  # the answer cannot be pickled
            child.send(("reply", number, False, UserError(f"the answer of {name} cannot be sent: {error}")))
