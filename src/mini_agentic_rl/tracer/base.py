"""The base of tracers, which binds a trace to the running task and makes spans of what is emitted there, and the plain
tracer without OpenTelemetry.

The active tracer and its open trace are context variables. Any number of runners may share one tracer on one event
loop: each task, and each thread that was started with the task's context, sees its own rollout.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from ..errors import MissingPackageError
from ..store import LightningStore
from ..types import Attributes, ParallelWorkerBase, Span, SpanCoreFields, SpanRecordingContext, TraceStatus
from .spans import FlatSpan, OpenSpan, Trace, around, parent_of_all

logger = logging.getLogger(__name__)

_active_tracer: ContextVar[Tracer | None] = ContextVar("active_tracer", default=None)
_current_trace: ContextVar[Trace | None] = ContextVar("current_trace", default=None)
_last_trace: ContextVar[Trace | None] = ContextVar("last_trace", default=None)
_process_tracer: list[Tracer] = []
"""Tracer of tasks that have none of their own; at most one."""
_set_up: list[Callable[[], None]] = []
"""Call of `init`, to be made again; at most one."""


def get_active_tracer() -> Tracer | None:
    """Return the tracer of the running task, else the one that `init` has set up for the process, else None."""
    return _active_tracer.get() or (_process_tracer[0] if _process_tracer else None)


def set_process_tracer(tracer: Tracer) -> None:
    """Make `tracer` the one of all tasks that have none of their own."""
    _process_tracer[:] = [tracer]


def remember_init(again: Callable[[], None]) -> None:
    """Note how to call `init` again, so that processes which this one sends a tracer to call it as well."""
    _set_up[:] = [again]


def recipe_of(tracer: Tracer) -> tuple[Callable[..., Tracer], tuple[Any, ...]]:
    """Return what `__reduce__` needs to make such a tracer in another process.

    The tracer's class is called without arguments there.
    """
    return _make_again, (type(tracer), *_set_up)


def _make_again(kind: type[Tracer], set_up: Callable[[], None] | None = None) -> Tracer:
    if set_up is not None:
        set_up()
    return kind()


def get_open_trace() -> Trace | None:
    """Return the trace that is open in this task, of any tracer."""
    return _current_trace.get()


def set_active_tracer(tracer: Tracer) -> None:
    """Make `tracer` the one that emitters of this task use.

    Raises:
        ValueError: another tracer is active here.
    """
    active = _active_tracer.get()
    if active is not None and active is not tracer:
        raise ValueError("another tracer is active here: call clear_active_tracer() first")
    _active_tracer.set(tracer)


def clear_active_tracer() -> None:
    """Leave this task without an active tracer."""
    _active_tracer.set(None)


class Tracer(ParallelWorkerBase):
    """Maker of spans, which brings them to the store.

    As it stands it makes flat spans, without OpenTelemetry. A subclass of yours overrides what it does otherwise, and
    need not call `super().__init__()`: `trace_context` where it installs an instrumentation of its own and brings the
    spans to the store itself, `create_span` and `operation_context` where it makes spans itself, `get_last_trace` where
    it keeps them. `init_worker` gets the store of the runner and leaves it in `_store`.
    """

    _store: LightningStore | None = None
    _trace_type: type[Trace] = Trace

    def init_worker(self, worker_id: int, store: LightningStore | None = None) -> None:
        """Get ready for one worker; `trace_context` without a store writes to `store` from now on."""
        super().init_worker(worker_id)
        self._store = store

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}  # where the tracer is sent, a runner gives it a store of that place

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: LightningStore | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncIterator[Trace]:
        """Trace what runs inside as one attempt; every span is in the store when the context has ended.

        Without a store (neither here nor in `lifespan`) the spans are kept in memory for `get_last_trace`.

        Raises:
            ValueError: one of the two ids without the other, or a store without them.
            Exception: what the store raised, unless the body raised first.
        """
        if store is None and rollout_id is not None:
            store = self._store
        trace = self._trace_type(self, store, rollout_id, attempt_id)
        async with self._bound(trace, self._around(trace, name or "trace")):
            yield trace

    @asynccontextmanager
    async def trace_attempt(self, store: LightningStore, rollout_id: str, attempt_id: str) -> AsyncIterator[Trace]:
        """Trace an attempt as a runner does: with `trace_context`, also where a subclass has put its own in its place.

        Such a one is called without the store, which it has from `init_worker`. Whatever it yields, what the runner and
        the emitters record reaches the store.
        """
        if type(self).trace_context is Tracer.trace_context:
            trace = self._trace_type(self, store, rollout_id, attempt_id)
            async with self._bound(trace, self._root(trace, rollout_id)):
                yield trace
            return
        async with self.trace_context(name=rollout_id, rollout_id=rollout_id, attempt_id=attempt_id):
            opened = self._open_trace()
            if opened is not None:  # its own context stands around ours
                yield opened
                return
            trace = self._trace_type(self, store, rollout_id, attempt_id)
            async with self._bound(trace, self._root(trace, rollout_id)):
                yield trace

    @asynccontextmanager
    async def continue_trace(self) -> AsyncIterator[Trace]:
        """Add more spans to the last trace of this task, after it has ended.

        Raises:
            RuntimeError: this task has traced nothing with this tracer.
        """
        last = _last_trace.get()
        if last is None or last.tracer is not self:
            raise RuntimeError("there is no trace to continue: open one with trace_context()")
        trace = last.continued()
        async with self._bound(trace, self._root_again(trace)):
            yield trace

    @contextmanager
    def joined(self, trace: Trace) -> Iterator[Trace]:
        """Continue a trace that another process has opened; `trace.root` is the root that it has there."""
        with self._visible(trace), self._root_again(trace):
            yield trace

    def get_last_trace(self) -> list[Span]:
        """Return the ended spans of the trace that is open in this task, else of the one that ended last.

        LLM calls recorded by the gateway are not among them; they are in the store.
        """
        trace = self._open_trace() or _last_trace.get()
        return list(trace.recorded) if trace is not None and trace.tracer is self else []

    async def trace_run_async(self, func: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Await `func(*args, **kwargs)` inside a trace that no rollout owns."""
        async with self.trace_context(_name_of(func)):
            return await func(*args, **kwargs)

    def trace_run(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `func(*args, **kwargs)` inside a trace that no rollout owns."""
        trace = self._trace_type(self, None, None, None)
        with self._visible(trace), self._around(trace, _name_of(func)):
            return func(*args, **kwargs)

    def get_langchain_handler(self) -> Any:
        """Return a callback handler that makes spans of what LangChain and LangGraph run.

        The spans go to the trace that is open then.

        Before Python 3.11 LangChain loses it in asynchronous nodes that do not hand their `config` on.

        Raises:
            UserError: LangChain is not installed.
        """
        try:
            from .langchain import LangChainHandler
        except ImportError as error:
            raise MissingPackageError("get_langchain_handler", "langchain-core") from error
        return LangChainHandler(self._begin)

    @contextmanager
    def lifespan(self, store: LightningStore | None = None) -> Iterator[Tracer]:
        """Use this tracer by hand: it is the active one, and `trace_context` without a store writes to `store`."""
        previous_store, previous = self._store, _active_tracer.get()
        with self.ready(0, store):
            _active_tracer.set(self)
            try:
                yield self
            finally:
                self._store = previous_store
                _active_tracer.set(previous)

    @contextmanager
    def ready(self, worker_id: int, store: LightningStore | None) -> Iterator[None]:
        """Take this tracer through its life as a worker's: `init` and `init_worker`, and at the end both teardowns."""
        self.init()
        try:
            self.init_worker(worker_id, store)
            try:
                yield
            finally:
                self.teardown_worker(worker_id)
        finally:
            self.teardown()

    def create_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """Record a span that starts and ends at once, at `timestamp` seconds since the epoch or now.

        Outside of every trace it is recorded nowhere, which is logged.
        """
        at = time.time() if timestamp is None else timestamp
        span = self._begin(name, attributes or {}, at)
        if status is not None:
            span.record_status(status.status_code, status.description)
        span.end(at)
        return span.get_recorded_span()

    @contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Attributes | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Iterator[SpanRecordingContext]:
        """Put a span around what runs inside; an exception that leaves it is recorded and raised again.

        Outside of every trace the span is recorded nowhere, which is logged.
        """
        begin = time.time() if start_time is None else start_time
        with around(self._begin(name, attributes or {}, begin), end_time) as span:
            yield span

    def _begin(self, name: str, attributes: Attributes, start_time: float) -> OpenSpan:
        """Begin a span below what is open in this task."""
        return FlatSpan(self._trace_for(name), name, attributes, start_time)

    def _root(self, trace: Trace, name: str) -> AbstractContextManager[None]:
        """Return the context around everything in a new trace."""
        trace.root = uuid.uuid4().hex
        return parent_of_all(None)

    def _around(self, trace: Trace, name: str) -> AbstractContextManager[None]:
        """Return the context around everything in a trace that is opened by hand, and not by a runner."""
        return self._root(trace, name)

    def _root_again(self, trace: Trace) -> AbstractContextManager[None]:
        """Return the context around what is added to a trace that has ended."""
        return parent_of_all(None)

    def _open_trace(self) -> Trace | None:
        trace = _current_trace.get()
        return trace if trace is not None and trace.tracer is self else None

    def _trace_for(self, name: str) -> Trace | None:
        """Return the trace that a span goes to; None, with a line in the log, where none is open."""
        trace = self._open_trace()
        if trace is None:
            logger.warning("span %r is recorded nowhere: no trace of its tracer is open in this task", name)
        return trace

    @contextmanager
    def _visible(self, trace: Trace) -> Iterator[None]:
        active, current = _active_tracer.get(), _current_trace.get()
        _active_tracer.set(self)
        _current_trace.set(trace)
        try:
            yield
        finally:
            _active_tracer.set(active)
            _current_trace.set(current)
            _last_trace.set(trace)

    @asynccontextmanager
    async def _bound(self, trace: Trace, root: AbstractContextManager[None]) -> AsyncIterator[None]:
        try:
            with self._visible(trace), root:
                yield
        except BaseException:
            await self._close_quietly(trace)
            raise
        else:
            await trace.close()

    @staticmethod
    async def _close_quietly(trace: Trace) -> None:
        try:
            await trace.close()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the body's own exception is the one to raise
            logger.warning("spans of rollout %s were lost: %s", trace.rollout_id, error)


def _name_of(func: Callable[..., Any]) -> str:
    return str(getattr(func, "__name__", type(func).__name__))


class DummyTracer(Tracer):
    """Tracer that writes `Span` objects directly. Operations are parents of what is emitted inside them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return recipe_of(self)
