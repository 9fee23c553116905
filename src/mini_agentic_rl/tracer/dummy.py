"""The tracer without OpenTelemetry: spans go straight to the store, with no root span around them."""

from __future__ import annotations

import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from ..types import Attributes, Event, Span, SpanCoreFields, TraceStatus
from .base import OpenSpan, Tracer, recipe_of
from .trace import Trace

_parent_id: ContextVar[str | None] = ContextVar("dummy_parent_id", default=None)


class _DummySpan(OpenSpan):
    def __init__(self, trace: Trace, core: SpanCoreFields) -> None:
        self._trace = trace
        self._core = core
        self._span_id = uuid.uuid4().hex[:16]
        self._parent_id = _parent_id.get()

    def record_attributes(self, attributes: Attributes) -> None:
        self._core.attributes.update(attributes)

    def record_exception(self, exception: BaseException) -> None:
        stack = "".join(traceback.format_exception(type(exception), exception, exception.__traceback__))
        attributes = {
            "exception.type": type(exception).__qualname__,
            "exception.message": str(exception),
            "exception.stacktrace": stack,
        }
        self._core.events.append(Event(name="exception", attributes=attributes, timestamp=time.time()))

    def record_status(self, status_code: str, description: str | None = None) -> None:
        self._core.status = TraceStatus(status_code=status_code, description=description)

    def get_recorded_span(self) -> SpanCoreFields:
        return self._core

    def inside(self) -> AbstractContextManager[None]:
        return _parent(self._span_id)

    def end(self, end_time: float) -> None:
        self._core.end_time = end_time
        span = Span.from_core_fields(
            self._core, trace_id=self._trace.root, span_id=self._span_id, parent_id=self._parent_id
        )
        self._trace.record(span)


class DummyTracer(Tracer):
    """Tracer that writes `Span` objects directly. Operations are parents of what is emitted inside them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return recipe_of(self)

    def _begin(self, name: str, attributes: Attributes, start_time: float) -> OpenSpan:
        trace = self._require_trace(name)
        return _DummySpan(trace, SpanCoreFields(name=name, attributes=dict(attributes), start_time=start_time))

    def _root(self, trace: Trace, name: str) -> AbstractContextManager[None]:
        trace.root = uuid.uuid4().hex
        return _parent(None)

    def _root_again(self, trace: Trace) -> AbstractContextManager[None]:
        return _parent(None)


@contextmanager
def _parent(span_id: str | None) -> Iterator[None]:
    before = _parent_id.get()
    _parent_id.set(span_id)
    try:
        yield
    finally:
        _parent_id.set(before)
