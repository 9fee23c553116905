"""The OpenTelemetry tracer. Every object has a provider of its own; the one of the process is neither set nor asked.

A span belongs to the trace that is open in the task where it starts. To bring the spans of an instrumentation library
along, give the library `OtelTracer.provider`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from weakref import WeakValueDictionary

from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, Status, StatusCode, set_span_in_context

from ..semconv import LightningResourceAttributes
from ..types import Attributes, Span, SpanCoreFields, TraceStatus
from .base import OpenSpan, Tracer, recipe_of
from .trace import Trace

TRACER_NAME: Final = LightningResourceAttributes.TRACER_NAME.value
"""Resource attribute of every span that comes from the provider of an `OtelTracer`."""

_UNLIMITED = SpanLimits(
    max_attributes=SpanLimits.UNSET,
    max_events=SpanLimits.UNSET,
    max_links=SpanLimits.UNSET,
    max_span_attributes=SpanLimits.UNSET,
    max_attribute_length=SpanLimits.UNSET,
    max_span_attribute_length=SpanLimits.UNSET,
)


class TraceRouter(SpanProcessor):
    """Span processor that hands each span, when it ends, to the trace that was open where it started.

    Args:
        open_trace: the trace that is open in the calling task, if any.
        elsewhere: gets the spans that no trace was open for.
    """

    def __init__(self, open_trace: Callable[[], Trace | None], elsewhere: SpanProcessor | None = None) -> None:
        self._open_trace = open_trace
        self._elsewhere = elsewhere
        self._lock = threading.Lock()
        self._trace_of: WeakValueDictionary[int, Trace] = WeakValueDictionary()  # spans may outlive their trace unended

    def on_start(self, span: SdkSpan, parent_context: otel_context.Context | None = None) -> None:
        trace, context = self._open_trace(), span.get_span_context()
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
        elif self._elsewhere is not None:
            self._elsewhere.on_end(span)

    def shutdown(self) -> None:
        if self._elsewhere is not None:
            self._elsewhere.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True if self._elsewhere is None else self._elsewhere.force_flush(timeout_millis)


class _OtelSpan(OpenSpan):
    def __init__(self, span: otel.Span, name: str) -> None:
        self._span = span
        self._name = name

    def record_attributes(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def record_exception(self, exception: BaseException) -> None:
        self._span.record_exception(exception)

    def record_status(self, status_code: str, description: str | None = None) -> None:
        self._span.set_status(_otel_status(TraceStatus(status_code=status_code, description=description)))

    def get_recorded_span(self) -> SpanCoreFields:
        if not isinstance(self._span, ReadableSpan):  # the sampler of a provider that is not ours left it out
            return SpanCoreFields(name=self._name)
        stored = Span.from_opentelemetry(self._span, "", "", 0)
        return SpanCoreFields(
            name=stored.name,
            attributes=stored.attributes,
            status=stored.status,
            start_time=stored.start_time,
            end_time=stored.end_time,
            links=stored.links,
            events=stored.events,
        )

    def inside(self) -> AbstractContextManager[otel.Span]:
        return otel.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self, end_time: float) -> None:
        self._span.end(end_time=_nanoseconds(end_time))


class OtelTracer(Tracer):
    """Tracer on the OpenTelemetry SDK: a root span per trace, operations and emitted spans below it.

    Raises:
        RuntimeError: the environment switches the OpenTelemetry SDK off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.provider = make_provider(Resource({TRACER_NAME: "mini_agentic_rl"}), shutdown_on_exit=False)
        """Provider whose spans reach the store."""
        self.provider.add_span_processor(TraceRouter(self._open_trace))
        self._otel = tracer_of(self.provider)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make the tracer anew in another process, with a provider of its own."""
        return recipe_of(self)

    def _begin(self, name: str, attributes: Attributes, start_time: float) -> OpenSpan:
        self._require_trace(name)
        return self._start(name, attributes, start_time)

    def _start(self, name: str, attributes: Attributes, start_time: float) -> OpenSpan:
        span = self._otel.start_span(name, attributes=attributes, start_time=_nanoseconds(start_time))
        return _OtelSpan(span, name)

    @contextmanager
    def _root(self, trace: Trace, name: str) -> Iterator[None]:
        with self._otel.start_as_current_span(name, context=otel_context.Context()) as span:
            trace.root = span.get_span_context()
            yield

    @contextmanager
    def _root_again(self, trace: Trace) -> Iterator[None]:
        token = otel_context.attach(set_span_in_context(NonRecordingSpan(trace.root), otel_context.Context()))
        try:
            yield
        finally:
            otel_context.detach(token)


def make_provider(resource: Resource, *, shutdown_on_exit: bool) -> TracerProvider:
    """Make a provider that samples everything and cuts nothing off."""
    return TracerProvider(
        sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=shutdown_on_exit, span_limits=_UNLIMITED
    )


def tracer_of(provider: TracerProvider) -> otel.Tracer:
    """Return a tracer of the OpenTelemetry SDK.

    Raises:
        RuntimeError: the environment switches the SDK off.
    """
    tracer = provider.get_tracer("mini_agentic_rl")
    if isinstance(tracer, otel.NoOpTracer):
        raise RuntimeError("OTEL_SDK_DISABLED is set, so OtelTracer records nothing: unset it, or use DummyTracer")
    return tracer


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _otel_status(status: TraceStatus) -> Status:
    code = StatusCode[status.status_code]
    return Status(code, status.description if code is StatusCode.ERROR else None)
