"""Traces, which collect the spans of one attempt and send them to the store, and open spans."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
import uuid
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from ..store import LightningStore
from ..types import Attributes, Event, ParallelWorkerBase, Span, SpanCoreFields, SpanRecordingContext, TraceStatus

logger = logging.getLogger(__name__)

LOCAL_ROLLOUT_ID = "local"
"""Rollout and attempt id of spans without a store."""


class Trace:
    """The spans of one attempt, sent to the store in batches. Without a store they are only kept, numbered from 1."""

    def __init__(
        self,
        tracer: ParallelWorkerBase,
        store: LightningStore | None,
        rollout_id: str | None,
        attempt_id: str | None,
        recorded: list[Span] | None = None,
    ) -> None:
        if (rollout_id is None) != (attempt_id is None) or (store is not None and rollout_id is None):
            raise ValueError("a trace that goes to a store needs both rollout_id and attempt_id")
        self.tracer = tracer
        self.store = store
        self.rollout_id = rollout_id or LOCAL_ROLLOUT_ID
        self.attempt_id = attempt_id or LOCAL_ROLLOUT_ID
        self.recorded: list[Span] = [] if recorded is None else recorded
        """All ended spans, in the order of their ends; `sequence_id` is 0 until the store has assigned one."""
        self.root: Any = None
        """Root of the trace, in the tracer's form."""
        self._loop = asyncio.get_running_loop() if store is not None else None
        self._lock = threading.Lock()
        self._pending: deque[Span] = deque()
        self._draining: asyncio.Task[None] | None = None
        self._scheduled = False
        self._closed = False
        self._error: Exception | None = None

    def continued(self) -> Trace:
        """Return an open trace of the same attempt that continues this one."""
        trace = type(self)(self.tracer, self.store, self.rollout_id, self.attempt_id, self.recorded)
        trace.root = self.root
        return trace

    def record(self, span: Span) -> None:
        """Add an ended span, and set its rollout and attempt; any thread."""
        span.rollout_id, span.attempt_id = self.rollout_id, self.attempt_id
        with self._lock:
            if self._closed:
                logger.warning(
                    "span %r came after attempt %s of rollout %s had ended and is dropped",
                    span.name,
                    self.attempt_id,
                    self.rollout_id,
                )
                return
            self.recorded.append(span)
            if self._loop is None:
                span.sequence_id = len(self.recorded)
                return
            self._pending.append(span)
            if self._scheduled:
                return
            self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._start_drain)
        except RuntimeError:
            logger.warning("the event loop of rollout %s is closed: span %r is dropped", self.rollout_id, span.name)

    async def close(self) -> None:
        """Send the pending spans, then refuse further ones.

        Raises:
            Exception: whatever the store raised for spans of this trace.
        """
        while True:
            with self._lock:
                if not self._pending and not self._scheduled:
                    self._closed = True
                    break
            if self._draining is None:
                await asyncio.sleep(0)
            else:
                await asyncio.shield(self._draining)
        if self._error is not None:
            raise self._error

    def _start_drain(self) -> None:
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        assert self.store is not None  # a trace without a store never schedules a drain
        while True:
            with self._lock:
                batch = list(self._pending)
                self._pending.clear()
                if not batch:
                    self._scheduled, self._draining = False, None
                    return
            try:
                attempt = (self.rollout_id, self.attempt_id)
                numbers = await self.store.get_many_span_sequence_ids([attempt] * len(batch))
                for span, number in zip(batch, numbers, strict=True):
                    span.sequence_id = number
                await self.store.add_many_spans(batch)
            except Exception as error:  # raised by close()
                logger.warning("the store refused %d spans of rollout %s: %s", len(batch), self.rollout_id, error)
                self._error = error


_parent_id: ContextVar[str | None] = ContextVar("flat_parent_id", default=None)


class OpenSpan(SpanRecordingContext):
    """An open span."""

    @abstractmethod
    def inside(self) -> AbstractContextManager[Any]:
        """Return a block whose spans are children of this one."""

    @abstractmethod
    def end(self, end_time: float) -> None:
        """End the span at a time (seconds since the epoch), and record it."""


class FlatSpan(OpenSpan):
    """Span without OpenTelemetry, with status OK by default. Without a trace it is not recorded."""

    def __init__(self, trace: Trace | None, name: str, attributes: Attributes, start_time: float) -> None:
        self._trace = trace
        self._core = SpanCoreFields(
            name=name, attributes=dict(attributes), status=TraceStatus(status_code="OK"), start_time=start_time
        )
        self._span_id = uuid.uuid4().hex[:16]
        self._parent_id = _parent_id.get()

    def record_attributes(self, attributes: Attributes) -> None:
        self._core.attributes.update(attributes)

    def record_exception(self, exception: BaseException) -> None:
        facts = exception_facts(exception)
        self._core.events.append(Event(name="exception", attributes=facts, timestamp=time.time()))
        self.record_attributes(facts)
        self.record_status("ERROR", str(exception))

    def record_status(self, status_code: str, description: str | None = None) -> None:
        self._core.status = TraceStatus(status_code=status_code, description=description)

    def get_recorded_span(self) -> SpanCoreFields:
        return self._core

    def inside(self) -> AbstractContextManager[None]:
        return nullcontext() if self._trace is None else parent_of_all(self._span_id)

    def end(self, end_time: float) -> None:
        self._core.end_time = end_time
        if self._trace is not None:
            self._trace.record(
                Span.from_core_fields(
                    self._core, trace_id=self._trace.root, span_id=self._span_id, parent_id=self._parent_id
                )
            )


@contextmanager
def parent_of_all(span_id: str | None) -> Iterator[None]:
    """Make this span the parent of each `FlatSpan` that begins in the block; None makes them roots."""
    before = _parent_id.get()
    _parent_id.set(span_id)
    try:
        yield
    finally:
        _parent_id.set(before)


@contextmanager
def around(span: OpenSpan, end_time: float | None = None) -> Iterator[SpanRecordingContext]:
    """Put an open span around the block; an exception of the block is recorded and raised again."""
    try:
        with span.inside():
            yield span
    except Exception as error:
        span.record_exception(error)
        raise
    finally:
        span.end(time.time() if end_time is None else end_time)


def exception_facts(exception: BaseException) -> Attributes:
    """Return OpenTelemetry's attributes of an exception that left its span: type, message, stack."""
    stack = traceback.format_exception(type(exception), exception, exception.__traceback__)
    return {
        "exception.type": type(exception).__qualname__,
        "exception.message": str(exception),
        "exception.stacktrace": "".join(stack),
        "exception.escaped": True,
    }
