"""The base of every tracer: it binds a trace to the running task, and turns what is emitted there into spans.

The active tracer and its open trace are context variables. Any number of runners may share one tracer in one event
loop: each task, and each thread started with the task's context, sees its own rollout.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from ..errors import UserError
from ..store import LightningStore
from ..types import Attributes, Span, SpanCoreFields, TraceStatus
from .trace import Trace

logger = logging.getLogger(__name__)

_active_tracer: ContextVar[Tracer | None] = ContextVar("active_tracer", default=None)
_current_trace: ContextVar[Trace | None] = ContextVar("current_trace", default=None)
_last_trace: ContextVar[Trace | None] = ContextVar("last_trace", default=None)
_process_tracer: list[Tracer] = []
"""Tracer of tasks that have none of their own; at most one."""
_init_arguments: list[tuple[str | None, str | None]] = []
"""Arguments of the call of `init`; at most one pair."""


def get_active_tracer() -> Tracer | None:
    """Return the tracer of the running task, else the one that `init` has set up for the process, else None."""
    return _active_tracer.get() or (_process_tracer[0] if _process_tracer else None)


def set_process_tracer(tracer: Tracer) -> None:
    """Make `tracer` the one of all tasks that have none of their own."""
    _process_tracer[:] = [tracer]


def remember_init(endpoint: str | None, api_key: str | None) -> None:
    """Note the arguments of `init`, so that processes which this one sends a tracer to call it as well."""
    _init_arguments[:] = [(endpoint, api_key)]


def recipe_of(tracer: Tracer) -> tuple[Callable[..., Tracer], tuple[Any, ...]]:
    """Return what `__reduce__` needs to make such a tracer in another process.

    The tracer's class is called without arguments there.
    """
    return _make_again, (type(tracer), *_init_arguments)


def _make_again(kind: type[Tracer], init_arguments: tuple[str | None, str | None] | None = None) -> Tracer:
    if init_arguments is not None:
        from .process import init

        endpoint, api_key = init_arguments
        init(endpoint, api_key=api_key)
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


class SpanRecordingContext(ABC):
    """Span that is still open."""

    @abstractmethod
    def record_attributes(self, attributes: Attributes) -> None:
        """Add attributes to the span, or replace those of the same names."""

    @abstractmethod
    def record_exception(self, exception: BaseException) -> None:
        """Add the exception as an event."""

    @abstractmethod
    def record_status(self, status_code: str, description: str | None = None) -> None:
        """Set the status: UNSET, OK or ERROR."""

    @abstractmethod
    def get_recorded_span(self) -> SpanCoreFields:
        """Return what has been recorded so far."""


class OpenSpan(SpanRecordingContext):
    """Open span as its tracer sees it."""

    @abstractmethod
    def inside(self) -> AbstractContextManager[Any]:
        """Return a block whose spans are children of this one."""

    @abstractmethod
    def end(self, end_time: float) -> None:
        """End the span, at a time in seconds since the epoch, and record it."""


class Tracer(ABC):
    """Maker of spans, which brings them to the store. Subclasses define how a span is begun."""

    def __init__(self) -> None:
        self._store: LightningStore | None = None

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
            ValueError: a store, but not both ids.
            Exception: what the store raised, unless the body raised first.
        """
        if store is None and rollout_id is not None:
            store = self._store
        trace = Trace(self, store, rollout_id, attempt_id)
        async with self._bound(trace, self._root(trace, name or "trace")):
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
        trace = Trace(self, None, None, None)
        with self._visible(trace), self._root(trace, _name_of(func)):
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
            raise UserError("get_langchain_handler needs LangChain: pip install langchain-core") from error
        return LangChainHandler(self)

    @contextmanager
    def lifespan(self, store: LightningStore | None = None) -> Iterator[Tracer]:
        """Use this tracer by hand: it is the active one, and `trace_context` without a store writes to `store`."""
        previous_store, previous = self._store, _active_tracer.get()
        self._store = store
        _active_tracer.set(self)
        try:
            yield self
        finally:
            self._store = previous_store
            _active_tracer.set(previous)

    def create_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """Record a span that starts and ends at once, at `timestamp` seconds since the epoch or now.

        Raises:
            RuntimeError: no trace of this tracer is open in this task.
        """
        at = time.time() if timestamp is None else timestamp
        span = self._begin(name, attributes or {}, at)
        if status is not None:
            span.record_status(status.status_code, status.description)
        span.end(at)
        return SpanCoreFields(
            name=name,
            attributes=dict(attributes or {}),
            status=status or TraceStatus(),
            start_time=at,
            end_time=at,
        )

    @contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Attributes | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Iterator[SpanRecordingContext]:
        """Put a span around what runs inside; an exception that leaves it is recorded and raised again.

        Raises:
            RuntimeError: no trace of this tracer is open in this task.
        """
        span = self._begin(name, attributes or {}, time.time() if start_time is None else start_time)
        try:
            with span.inside():
                yield span
        except Exception as error:
            span.record_exception(error)
            span.record_status("ERROR", f"{type(error).__name__}: {error}")
            raise
        finally:
            span.end(time.time() if end_time is None else end_time)

    @abstractmethod
    def _begin(self, name: str, attributes: Attributes, start_time: float) -> OpenSpan:
        """Begin a span below what is open in this task.

        Raises:
            RuntimeError: no trace of this tracer is open in this task.
        """

    @abstractmethod
    def _root(self, trace: Trace, name: str) -> AbstractContextManager[None]:
        """Return the context around everything in a new trace."""

    @abstractmethod
    def _root_again(self, trace: Trace) -> AbstractContextManager[None]:
        """Return the context around what is added to a trace that has ended."""

    def _open_trace(self) -> Trace | None:
        trace = _current_trace.get()
        return trace if trace is not None and trace.tracer is self else None

    def _require_trace(self, name: str) -> Trace:
        trace = self._open_trace()
        if trace is None:
            raise RuntimeError(
                f"span {name!r} has no trace to go to: emit it inside a rollout or trace_context(), or pass "
                "propagate=False. A thread of your own must run inside contextvars.copy_context()"
            )
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
