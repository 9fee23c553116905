"""Spans that are still open: the interface that tracers begin them by, and those that need no OpenTelemetry."""

from __future__ import annotations

import time
import traceback
import uuid
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from ..types import Attributes, Event, Span, SpanCoreFields, SpanRecordingContext, TraceStatus
from .trace import Trace

_parent_id: ContextVar[str | None] = ContextVar("flat_parent_id", default=None)


class OpenSpan(SpanRecordingContext):
    """Open span as its tracer sees it."""

    @abstractmethod
    def inside(self) -> AbstractContextManager[Any]:
        """Return a block whose spans are children of this one."""

    @abstractmethod
    def end(self, end_time: float) -> None:
        """End the span, at a time in seconds since the epoch, and record it."""


class FlatSpan(OpenSpan):
    """Span that goes straight to its trace. Without a trace it is recorded nowhere.

    Its status is OK until another one is set.
    """

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
    """Make this span the parent of every `FlatSpan` that is begun inside; None makes them roots."""
    before = _parent_id.get()
    _parent_id.set(span_id)
    try:
        yield
    finally:
        _parent_id.set(before)


@contextmanager
def around(span: OpenSpan, end_time: float | None = None) -> Iterator[SpanRecordingContext]:
    """Put an open span around what runs inside; an exception that leaves it is recorded and raised again."""
    try:
        with span.inside():
            yield span
    except Exception as error:
        span.record_exception(error)
        raise
    finally:
        span.end(time.time() if end_time is None else end_time)


def exception_facts(exception: BaseException) -> Attributes:
    """Return OpenTelemetry's attributes of an exception: type, message, stack, and that nobody caught it."""
    stack = traceback.format_exception(type(exception), exception, exception.__traceback__)
    return {
        "exception.type": type(exception).__qualname__,
        "exception.message": str(exception),
        "exception.stacktrace": "".join(stack),
        "exception.escaped": True,
    }
