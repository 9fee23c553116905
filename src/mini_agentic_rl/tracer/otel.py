"""The OpenTelemetry tracer: one provider of its own per object, the process-wide one is neither set nor asked.

A span belongs to the trace that is open in the task where it starts. To bring the spans of an instrumentation library
along, give the library `OtelTracer.provider`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, Status, StatusCode, set_span_in_context

from ..semconv import LightningResourceAttributes
from ..types import Attributes, Span, SpanCoreFields, TraceStatus
from .base import SpanRecordingContext, Tracer
from .trace import Trace

_UNLIMITED = SpanLimits(
    max_attributes=SpanLimits.UNSET,
    max_events=SpanLimits.UNSET,
    max_links=SpanLimits.UNSET,
    max_span_attributes=SpanLimits.UNSET,
    max_attribute_length=SpanLimits.UNSET,
    max_span_attribute_length=SpanLimits.UNSET,
)


class _Router(SpanProcessor):
    """Hands each ended span to the trace that was open where the span started."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._lock = threading.Lock()
        self._trace_of: dict[int, Trace] = {}

    def on_start(self, span: SdkSpan, parent_context: otel_context.Context | None = None) -> None:
        trace, context = self._tracer._open_trace(), span.get_span_context()
        if trace is not None and context is not None:
            with self._lock:
                self._trace_of[context.span_id] = trace

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is None:
            return
        with self._lock:
            trace = self._trace_of.pop(context.span_id, None)
        if trace is not None:
            trace.record(Span.from_opentelemetry(span, trace.rollout_id, trace.attempt_id, 0))

    def forget(self, trace: Trace) -> None:
        """Drop the spans of an ended trace that were never ended themselves."""
        with self._lock:
            for span_id in [span_id for span_id, owner in self._trace_of.items() if owner is trace]:
                del self._trace_of[span_id]


class _OpenSpan(SpanRecordingContext):
    def __init__(self, span: SdkSpan) -> None:
        self._span = span

    def record_attributes(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def record_exception(self, exception: BaseException) -> None:
        self._span.record_exception(exception)

    def record_status(self, status_code: str, description: str | None = None) -> None:
        self._span.set_status(_otel_status(TraceStatus(status_code=status_code, description=description)))

    def get_recorded_span(self) -> SpanCoreFields:
        return _core_fields(self._span)


class OtelTracer(Tracer):
    """Spans by the OpenTelemetry SDK: a root span per trace, operations and emitted spans below it.

    Raises:
        RuntimeError: the environment switches the OpenTelemetry SDK off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource({LightningResourceAttributes.TRACER_NAME.value: "mini_agentic_rl"}),
            shutdown_on_exit=False,
            span_limits=_UNLIMITED,
        )
        """The provider whose spans reach the store."""
        self._router = _Router(self)
        self.provider.add_span_processor(self._router)
        self._otel = self.provider.get_tracer("mini_agentic_rl")
        if isinstance(self._otel, otel.NoOpTracer):
            raise RuntimeError("OTEL_SDK_DISABLED is set, so OtelTracer records nothing: unset it, or use DummyTracer")

    def create_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        self._require_trace(name)
        at = _nanoseconds(time.time() if timestamp is None else timestamp)
        span = self._start(name, attributes, at)
        if status is not None:
            span.set_status(_otel_status(status))
        span.end(end_time=at)
        return SpanCoreFields(
            name=name,
            attributes=dict(attributes or {}),
            status=status or TraceStatus(),
            start_time=at / 1e9,
            end_time=at / 1e9,
        )

    @contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Attributes | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Iterator[SpanRecordingContext]:
        self._require_trace(name)
        span = self._start(name, attributes, None if start_time is None else _nanoseconds(start_time))
        try:
            with otel.use_span(span, end_on_exit=False):
                yield _OpenSpan(span)
        finally:
            span.end(end_time=None if end_time is None else _nanoseconds(end_time))

    def _start(self, name: str, attributes: Attributes | None, start_time: int | None) -> SdkSpan:
        span = self._otel.start_span(name, attributes=attributes, start_time=start_time)
        assert isinstance(span, SdkSpan)  # the provider is ours and samples everything
        return span

    @contextmanager
    def _root(self, trace: Trace, name: str) -> Iterator[None]:
        try:
            with self._otel.start_as_current_span(name, context=otel_context.Context()) as span:
                trace.root = span.get_span_context()
                yield
        finally:
            self._router.forget(trace)

    @contextmanager
    def _root_again(self, trace: Trace) -> Iterator[None]:
        token = otel_context.attach(set_span_in_context(NonRecordingSpan(trace.root), otel_context.Context()))
        try:
            yield
        finally:
            otel_context.detach(token)
            self._router.forget(trace)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _otel_status(status: TraceStatus) -> Status:
    code = StatusCode[status.status_code]
    return Status(code, status.description if code is StatusCode.ERROR else None)


def _core_fields(span: ReadableSpan) -> SpanCoreFields:
    stored = Span.from_opentelemetry(span, "", "", 0)
    return SpanCoreFields(
        name=stored.name,
        attributes=stored.attributes,
        status=stored.status,
        start_time=stored.start_time,
        end_time=stored.end_time,
        links=stored.links,
        events=stored.events,
    )
