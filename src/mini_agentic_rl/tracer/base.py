"""The base of tracers, which binds a trace to the running task, and the tracer without OpenTelemetry.

The active tracer and its open trace are context variables. Any number of runners may share one tracer on one event
loop: each task, and each thread that was started with the task's context, sees its own rollout.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
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
"""Tracer of tasks without an active one; at most one."""
_set_up: list[Callable[[], None]] = []
"""Call of `init`, to be repeated in other processes; at most one."""


def get_active_tracer() -> Tracer | None:
    """Return the tracer of the running task, else that of the process (`init`), else None."""
    return _active_tracer.get() or (_process_tracer[0] if _process_tracer else None)


def remember_init(again: Callable[[], None], tracer: Tracer | None) -> None:
    """Note a call of `init`, which processes that unpickle a tracer of this one repeat.

    Args:
        again: Repeats the call.
        tracer: Tracer of all tasks without an active one.
    """
    _set_up[:] = [again]
    _process_tracer[:] = [] if tracer is None else [tracer]


def recipe_of(tracer: Tracer) -> tuple[Callable[..., Tracer], tuple[Any, ...]]:
    """Return the result of `__reduce__`: the tracer's class is called without arguments in the other process."""
    return _make_again, (type(tracer), *_set_up)


def _make_again(kind: type[Tracer], set_up: Callable[[], None] | None = None) -> Tracer:
    if set_up is not None:
        set_up()
    return kind()


def get_open_trace() -> Trace | None:
    """Return the open trace of this task, of any tracer."""
    return _current_trace.get()


def set_active_tracer(tracer: Tracer) -> None:
    """Make `tracer` the tracer of emitters in this task.

    Raises:
        ValueError: another tracer is active here.
    """
    active = _active_tracer.get()
    if active is not None and active is not tracer:
        raise ValueError("another tracer is active here: call clear_active_tracer() first")
    _active_tracer.set(tracer)


def clear_active_tracer() -> None:
    """Unset the active tracer of this task."""
    _active_tracer.set(None)


class Tracer(ParallelWorkerBase):
    """Makes spans and sends them to the store.

    This class makes flat spans, without OpenTelemetry. A subclass need not call `super().__init__()`. It overrides
    `trace_context` if it installs an instrumentation and sends the spans itself, `create_span` and `operation_context`
    if it makes spans itself, and `get_last_trace` if it keeps them. `init_worker` sets `_store` to the runner's store.
    """

    _store: LightningStore | None = None
    _trace_type: type[Trace] = Trace

    def init_worker(self, worker_id: int, store: LightningStore | None = None) -> None:
        """Prepare for one worker; `trace_context` without a store writes to `store` from now on."""
        super().init_worker(worker_id)
        self._store = store

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}  # a runner of the other process sets its store

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: LightningStore | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncIterator[Trace]:
        """Trace the block as one attempt; all of its spans are in the store when it has ended.

        Without a store (neither here nor in `lifespan`) the spans are kept in memory for `get_last_trace`.

        Args:
            name: name of the root span.
            store: the store of the attempt.
            rollout_id: id of the rollout; given together with `attempt_id`.
            attempt_id: id of the attempt.

        Raises:
            ValueError: one of the two ids without the other, or a store without them.
            Exception: whatever the store raised, unless the block raised first.
        """
        if store is None and rollout_id is not None:
            store = self._store
        trace = self._trace_type(self, store, rollout_id, attempt_id)
        async with self._bound(trace, self._around(trace, name or "trace")):
            yield trace

    @asynccontextmanager
    async def trace_attempt(self, store: LightningStore, rollout_id: str, attempt_id: str) -> AsyncIterator[Trace]:
        """Trace an attempt for a runner, within the `trace_context` of a subclass that overrides it.

        The overridden method is called without the store, which it has from `init_worker`. Spans of the runner and of
        emitters reach the store whatever it yields.
        """
        async with AsyncExitStack() as contexts:
            trace = None
            if type(self).trace_context is not Tracer.trace_context:
                theirs = self.trace_context(name=rollout_id, rollout_id=rollout_id, attempt_id=attempt_id)
                await contexts.enter_async_context(theirs)
                trace = self._open_trace()  # there is one if the subclass has called ours
            if trace is None:
                trace = self._trace_type(self, store, rollout_id, attempt_id)
                await contexts.enter_async_context(self._bound(trace, self._root(trace, rollout_id)))
            yield trace

    @asynccontextmanager
    async def continue_trace(self) -> AsyncIterator[Trace]:
        """Add spans to the last trace of this task, which has ended.

        Raises:
            RuntimeError: this task has no trace of this tracer.
        """
        last = _last_trace.get()
        if last is None or last.tracer is not self:
            raise RuntimeError("there is no trace to continue: open one with trace_context()")
        trace = last.continued()
        async with self._bound(trace, self._root_again(trace)):
            yield trace

    def get_last_trace(self) -> list[Span]:
        """Return the ended spans of the open trace of this task, else of its last one.

        LLM calls recorded by the gateway are not included; they are in the store.
        """
        trace = self._open_trace() or _last_trace.get()
        return list(trace.recorded) if trace is not None and trace.tracer is self else []

    async def trace_run_async(self, func: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Await `func(*args, **kwargs)` inside a trace without a rollout."""
        async with self.trace_context(_name_of(func)):
            return await func(*args, **kwargs)

    def trace_run(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `func(*args, **kwargs)` inside a trace without a rollout."""
        trace = self._trace_type(self, None, None, None)
        with self._visible(trace), self._around(trace, _name_of(func)):
            return func(*args, **kwargs)

    def get_langchain_handler(self) -> Any:
        """Return a callback handler that records runs of LangChain and LangGraph as spans of the open trace.

        Before Python 3.11 LangChain loses the handler in asynchronous nodes that do not pass their `config` on.

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
        """Use this tracer without a runner: it is active, and `trace_context` without a store writes to `store`."""
        previous_store, previous = self._store, _active_tracer.get()
        self.init()
        try:
            self.init_worker(0, store)
            try:
                _active_tracer.set(self)
                yield self
            finally:
                self._store = previous_store
                _active_tracer.set(previous)
                self.teardown_worker(0)
        finally:
            self.teardown()

    def create_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """Record a span without duration, at `timestamp` (seconds since the epoch) or now.

        Without an open trace it is dropped with a warning.
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
        """Put a span around the block; an exception of the block is recorded and raised again.

        Without an open trace the span is dropped with a warning.
        """
        begin = time.time() if start_time is None else start_time
        with around(self._begin(name, attributes or {}, begin), end_time) as span:
            yield span

    def _begin(self, name: str, attributes: Attributes, start_time: float) -> OpenSpan:
        """Begin a span below the innermost open span of this task."""
        return FlatSpan(self._trace_for(name), name, attributes, start_time)

    def _root(self, trace: Trace, name: str) -> AbstractContextManager[None]:
        """Return the context of a new trace."""
        trace.root = uuid.uuid4().hex
        return parent_of_all(None)

    def _around(self, trace: Trace, name: str) -> AbstractContextManager[None]:
        """Return the context of a new trace that no runner opens."""
        return self._root(trace, name)

    def _root_again(self, trace: Trace) -> AbstractContextManager[None]:
        """Return the context in which spans are added to a trace that has ended."""
        return parent_of_all(None)

    def _open_trace(self) -> Trace | None:
        trace = _current_trace.get()
        return trace if trace is not None and trace.tracer is self else None

    def _trace_for(self, name: str) -> Trace | None:
        """Return the open trace; None, with a warning, if there is none."""
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
            try:
                await trace.close()
            except Exception as error:  # the exception of the block is raised
                logger.warning("spans of rollout %s were lost: %s", trace.rollout_id, error)
            raise
        else:
            await trace.close()


def _name_of(func: Callable[..., Any]) -> str:
    return str(getattr(func, "__name__", type(func).__name__))


class DummyTracer(Tracer):
    """Tracer that writes `Span` objects directly. Operations are the parents of spans inside them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return recipe_of(self)
