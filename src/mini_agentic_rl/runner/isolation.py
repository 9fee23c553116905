"""An agent in a process of its own, which can be ended whatever the agent does.

The process is started when there is work, kept for the calls that follow, and replaced after it was ended or has died.
It gets the agent as it was when the run began; what the agent changes of itself stays in its process.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from ..errors import UserError
from ..litagent import LitAgent, RolloutOutcome
from ..store import STORE_METHODS, LightningStore
from ..tracer import Trace, Tracer
from ..types import AttemptedRollout, NamedResources
from .calls import (
    ORPHAN_SECONDS,
    AgentCall,
    AgentReturn,
    ExitedError,
    OutOfTimeError,
    StoppedError,
    settle,
    why_stopped,
)
from .forwarded_store import offered_to_agents
from .processes import Child, RemoteFailure, describe_exit, dumps

logger = logging.getLogger(__name__)

_START_SECONDS = 120.0
_TERM_SECONDS = 1.0
_LEAVE_SECONDS = 2.0
_ADVICE = (
    "Make it where it is used, inside the agent's method; or define the agent in a module of its own, which is then "
    "imported there; or use `isolation='thread'`."
)


class AgentProcess:
    """The process of one runner. All methods belong to one event loop."""

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
        """Start the process unless it is up; return it once the agent is there, or `stop` is done.

        Raises:
            UserError: the agent cannot be sent, or the system offers no such processes.
            Exception: whatever importing the agent raised.
            ExitedError: the process died at once.
            TimeoutError: importing the agent takes too long.
        """
        if self._child is not None and self._child.running:
            return self._child
        self.discard()
        if self._setup is None:
            self._setup = dumps((self._agent, self._tracer), "(agent, tracer)", _ADVICE)
        self._child = child = await Child.start(self._worker_id, f"{__package__}.agent_worker:main", ORPHAN_SECONDS)
        self._ready = asyncio.get_running_loop().create_future()
        child.send((self._setup, *offered_to_agents(self._store), self._worker_id))
        self._serving = asyncio.ensure_future(self._serve(child))
        waiting: set[asyncio.Future[Any]] = {self._ready} if stop is None else {self._ready, stop}
        try:
            await asyncio.wait(waiting, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
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
        """Start the process ahead of an attempt and not on its time; an error is raised by the next call."""
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
        """Call the agent; `rollout.metadata` holds its changes afterwards.

        Args:
            deadline: time of the event loop by which it must have returned; None is no limit.
            stop: the call is given up once this future is done.

        Raises:
            OutOfTimeError: the deadline passed. The process is being ended, with all that it has started.
            StoppedError: `stop` was done first; likewise.
            ExitedError: the process has died, or the agent called `sys.exit`.
            Exception: whatever the agent raised: of a class with that name, with that text, caused by its traceback.
        """
        if self._obstacle is not None:
            error, self._obstacle = self._obstacle, None
            raise error
        child = await self.start(stop)
        if stop is not None and stop.done():
            raise StoppedError(why_stopped(stop))
        call = AgentCall(rollout, resources, trace.root, list(trace.recorded))
        loop = asyncio.get_running_loop()
        self._result, self._trace = loop.create_future(), trace
        try:
            child.send(("run", dumps(call, "the call", "Use tasks and resources that can be pickled.")))
            waiting: set[asyncio.Future[Any]] = {self._result} if stop is None else {self._result, stop}
            timeout = None if deadline is None else max(0.0, deadline - loop.time())
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
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
        """End the process, if there is one, in the background; the next call gets a new one."""
        child = self._let_go()
        if child is not None:
            thread = threading.Thread(target=child.end, args=(_TERM_SECONDS,), name=f"{child.name}-end")
            self._ending = [one for one in self._ending if one.is_alive()] + [thread]
            thread.start()

    async def close(self) -> None:
        """Let the process end by itself, then end what is left. All is gone when this returns."""
        child = self._let_go()
        if child is not None:
            child.hang_up()
            await asyncio.wait({child.exited}, timeout=_LEAVE_SECONDS)
            await asyncio.to_thread(child.end, _TERM_SECONDS)
        for thread in self._ending:
            await asyncio.to_thread(thread.join)

    def close_at_once(self) -> None:
        """End the process and wait for it; for where nothing can be awaited."""
        self.discard()
        for thread in self._ending:
            thread.join()

    def _let_go(self) -> Child | None:
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
