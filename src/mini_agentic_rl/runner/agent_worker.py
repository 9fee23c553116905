"""The process in which an agent runs apart from its runner (`isolation="process"`), one call after the other.

Spans are sent to the runner when they end. The runner also makes the store calls (`ForwardedStore`). The main thread
runs the agent: a sync method directly, an async one on an event loop that lives as long as the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import itertools
import os
import pickle
import queue
import threading
from collections.abc import Callable
from typing import Any

from ..attribution import calls_of, environment_of_attempt
from ..litagent import LitAgent, read_result, rollout_call
from ..processes import Channel, RemoteFailure, settle
from ..store import ForwardingStore, LightningStoreCapabilities, forward_methods
from ..tracer import Trace, Tracer
from ..types import Span
from .agent_runner import LitAgentRunner
from .isolation import ORPHAN_SECONDS, AgentCall, AgentReturn, ExitedError, label


class ForwardedStore(ForwardingStore):
    """The runner's store, for any thread and event loop of this process.

    Every async method is forwarded, except `close`: the store belongs to the runner.
    """

    def __init__(self, channel: Channel, capabilities: LightningStoreCapabilities, otlp_endpoint: str | None) -> None:
        self._channel = channel
        self._capabilities = capabilities
        self._otlp_endpoint = otlp_endpoint
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=False, otlp_traces=self._capabilities["otlp_traces"]
        )

    def otlp_traces_endpoint(self) -> str:
        return super().otlp_traces_endpoint() if self._otlp_endpoint is None else self._otlp_endpoint

    async def close(self) -> None:
        """Do nothing."""

    def resolve(self, number: int, succeeded: bool, value: Any) -> None:
        """Set the result of a call, or its exception. Called in the receiving thread."""
        with self._lock:
            future = self._waiting.pop(number, None)
        if future is not None:
            with contextlib.suppress(RuntimeError):  # its event loop is closed: nobody waits
                future.get_loop().call_soon_threadsafe(settle, future, *((value,) if succeeded else (None, value)))

    def fail_waiting(self, error: Exception) -> None:
        """Fail all waiting calls: an answer cannot be unpickled. Called in the receiving thread."""
        with self._lock:
            numbers = list(self._waiting)
        for number in numbers:
            self.resolve(number, False, RuntimeError(f"the answer of the store cannot be read here: {error!r}"))

    async def _forward(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
        try:
            self._channel.send(("call", number, name, args, kwargs))
            return await future
        finally:
            with self._lock:
                self._waiting.pop(number, None)


forward_methods(ForwardedStore)


class _SentTrace(Trace):
    """A trace whose spans are sent to the runner, which numbers and stores them."""

    def __init__(self, tracer: Tracer, call: AgentCall, send: Callable[[Any], None]) -> None:
        super().__init__(tracer, None, call.rollout.rollout_id, call.rollout.attempt.attempt_id, list(call.recorded))
        self.root = call.trace_root
        self._send = send

    def record(self, span: Span) -> None:
        span.rollout_id, span.attempt_id = self.rollout_id, self.attempt_id
        self.recorded.append(span)
        self._send(("span", span))


def main(channel: Channel) -> None:
    """Load the agent and serve calls until the runner closes the connection; the entry of the process."""
    try:
        setup, capabilities, otlp_endpoint, worker_id = channel.receive()
        agent, tracer = pickle.loads(setup)
    except BaseException as error:  # importing the agent's modules runs code that may raise anything
        channel.send(("refused", RemoteFailure.of(error)))
        return
    store = ForwardedStore(channel, capabilities, otlp_endpoint)
    calls: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, store, calls), name="listener", daemon=True).start()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    channel.send(("ready",))
    with LitAgentRunner(tracer).run_context(agent=agent, store=store, worker_id=worker_id):
        while (call := calls.get()) is not None:
            result = contextvars.copy_context().run(_run, call, agent, tracer, channel.send, loop)
            try:
                channel.send(("done", result))
            except OSError:
                break
            except Exception as error:  # the result cannot be pickled
                channel.send(("done", RemoteFailure.of(error)))
    channel.end_others()


def _listen(channel: Channel, store: ForwardedStore, calls: queue.SimpleQueue[bytes | None]) -> None:
    try:
        while True:
            try:
                kind, *values = channel.receive()
            except EOFError:
                raise
            except Exception as error:  # the next message is readable again
                store.fail_waiting(error)
                continue
            if kind == "run":
                calls.put(*values)
            else:
                store.resolve(*values)
    except EOFError:
        calls.put(None)
        channel.end_all(ORPHAN_SECONDS)


def _run(
    pickled: bytes,
    agent: LitAgent[Any],
    tracer: Tracer,
    send: Callable[[Any], None],
    loop: asyncio.AbstractEventLoop,
) -> AgentReturn | RemoteFailure:
    try:
        call: AgentCall = pickle.loads(pickled)
        rollout = call.rollout
        attempt = (rollout.rollout_id, rollout.attempt.attempt_id)
        with tracer.joined(_SentTrace(tracer, call, send)), calls_of(*attempt, call.resources) as calling:
            os.environ |= environment_of_attempt(
                calling
            )  # for processes that the agent starts; the next call replaces it
            method, args, kwargs = rollout_call(agent, rollout, call.resources)
            before = dict(rollout.metadata)
            try:
                result = method(*args, **kwargs)
                if inspect.isawaitable(result):
                    result = loop.run_until_complete(result)
            except asyncio.CancelledError as error:
                raise ExitedError(f"{label(method)} cancelled itself") from error
            except (SystemExit, KeyboardInterrupt) as error:
                raise ExitedError(f"{label(method)} raised {type(error).__name__}: {error}") from error
        return AgentReturn(read_result(result, rollout, before), dict(rollout.metadata))
    except Exception as error:
        return RemoteFailure.of(error)
