"""A tracer without OpenTelemetry: spans go straight to the store, with no root span around them."""

from __future__ import annotations

import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from ..types import Attributes, Event, Span, SpanCoreFields, TraceStatus
from .base import SpanRecordingContext, Tracer
from .trace import Trace

_parent_id: ContextVar[str | None] = ContextVar("dummy_parent_id", default=None)


class _OpenSpan(SpanRecordingContext):
    def __init__(self, core: SpanCoreFields) -> None:
        self.core = core

    def record_attributes(self, attributes: Attributes) -> None:
        self.core.attributes.update(attributes)

    def record_exception(self, exception: BaseException) -> None:
        stack = "".join(traceback.format_exception(type(exception), exception, exception.__traceback__))
        attributes = {
            "exception.type": type(exception).__qualname__,
            "exception.message": str(exception),
            "exception.stacktrace": stack,
        }
        self.core.events.append(Event(name="exception", attributes=attributes, timestamp=time.time()))

    def record_status(self, status_code: str, description: str | None = None) -> None:
        self.core.status = TraceStatus(status_code=status_code, description=description)

    def get_recorded_span(self) -> SpanCoreFields:
        return self.core


class DummyTracer(Tracer):
    """Writes `Span` objects directly. Operations are parents of what is emitted inside them."""

    def create_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        trace = self._require_trace(name)
        now = time.time() if timestamp is None else timestamp
        core = SpanCoreFields(
            name=name,
            attributes=dict(attributes or {}),
            status=status or TraceStatus(),
            start_time=now,
            end_time=now,
        )
        trace.record(Span.from_core_fields(core, trace_id=trace.root, parent_id=_parent_id.get()))
        return core

    @contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Attributes | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Iterator[SpanRecordingContext]:
        trace = self._require_trace(name)
        started = time.time() if start_time is None else start_time
        open_span = _OpenSpan(SpanCoreFields(name=name, attributes=dict(attributes or {}), start_time=started))
        span_id, parent_id = uuid.uuid4().hex[:16], _parent_id.get()
        _parent_id.set(span_id)
        try:
            yield open_span
        except Exception as error:
            open_span.record_exception(error)
            open_span.record_status("ERROR", f"{type(error).__name__}: {error}")
            raise
        finally:
            _parent_id.set(parent_id)
            open_span.core.end_time = time.time() if end_time is None else end_time
            trace.record(
                Span.from_core_fields(open_span.core, trace_id=trace.root, span_id=span_id, parent_id=parent_id)
            )

    @contextmanager
    def _no_parent(self) -> Iterator[None]:
        parent_id = _parent_id.get()
        _parent_id.set(None)
        try:
            yield
        finally:
            _parent_id.set(parent_id)

    def _root(self, trace: Trace, name: str) -> AbstractContextManager[None]:
        trace.root = uuid.uuid4().hex
        return self._no_parent()

    def _root_again(self, trace: Trace) -> AbstractContextManager[None]:
        return self._no_parent()
