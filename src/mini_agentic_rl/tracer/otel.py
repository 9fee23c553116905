"""The OpenTelemetry tracer. Every object has a provider of its own; the one of the process is neither set nor asked.

A span belongs to the trace that is open in the task where it starts. To bring the spans of an instrumentation library
along, give the library `OtelTracer.provider`.
"""

from __future__ import annotations

# At a fork, handlers of the child run in the order in which they were registered. A provider's starts threads of an
# executor: registered before those of this module, it would wait for ever for a lock that they have yet to open.
import concurrent.futures.thread  # noqa: F401
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, Status, set_span_in_context
from opentelemetry.trace import StatusCode as OtelStatusCode

from ..semconv import LightningResourceAttributes
from ..types import Attributes, Span, SpanCoreFields, TraceStatus
from .base import Tracer, recipe_of
from .open_span import OpenSpan
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
            recorded = Span.from_opentelemetry(span, trace.rollout_id, trace.attempt_id, 0)
            recorded.resource.attributes = {
                **recorded.resource.attributes,
                LightningResourceAttributes.ROLLOUT_ID.value: trace.rollout_id,
                LightningResourceAttributes.ATTEMPT_ID.value: trace.attempt_id,
            }
            trace.record(recorded)
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
        self.record_status("ERROR", f"{type(exception).__name__}: {exception}")

    def record_status(self, status_code: str, description: str | None = None) -> None:
        self._span.set_status(_otel_status(TraceStatus(status_code=status_code, description=description)))

    def get_recorded_span(self) -> SpanCoreFields:
        if not isinstance(self._span, ReadableSpan):  # the sampler of a provider that is not ours left it out
            return SpanCoreFields(name=self._name)
        stored = Span.from_opentelemetry(self._span, "", "", 0)
        return SpanCoreFields(**{name: getattr(stored, name) for name in SpanCoreFields.model_fields})

    def inside(self) -> AbstractContextManager[otel.Span]:
        return otel.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self, end_time: float) -> None:
        self._span.end(end_time=_nanoseconds(end_time))


class OtelTrace(Trace):
    """Trace of an `OtelTracer`; it makes spans itself as well, as a tracer of the OpenTelemetry SDK does."""

    def start_span(self, name: str, **arguments: Any) -> otel.Span:
        """Start a span of this trace; the arguments are those of OpenTelemetry's method."""
        return self._otel.start_span(name, **arguments)

    def start_as_current_span(self, name: str, **arguments: Any) -> AbstractContextManager[otel.Span]:
        """Return a block inside a span of this trace; the arguments are those of OpenTelemetry's method."""
        return self._otel.start_as_current_span(name, **arguments)

    @property
    def _otel(self) -> otel.Tracer:
        assert isinstance(self.tracer, OtelTracer)  # which alone makes such traces
        return self.tracer.otel


class OtelTracer(Tracer):
    """Tracer on the OpenTelemetry SDK: a root span per trace, operations and emitted spans below it.

    Raises:
        RuntimeError: the environment switches the OpenTelemetry SDK off.
    """

    _trace_type = OtelTrace
    root_by_hand: ClassVar[bool] = True
    """True if a trace that is opened by hand gets a root span too, as that of a rollout does. Programs that run under
    agent-lightning's name expect none (`compat.alias`)."""
    root_attributes: ClassVar[Attributes] = {}
    """Attributes of the root span of each trace."""

    def __init__(self) -> None:
        self.provider = make_provider(Resource({TRACER_NAME: "mini_agentic_rl"}), shutdown_on_exit=False)
        """Provider whose spans reach the store."""
        self.provider.add_span_processor(TraceRouter(self._open_trace))
        self.otel = tracer_of(self.provider)
        """Tracer of the SDK that makes the spans."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Make the tracer anew in another process, with a provider of its own."""
        return recipe_of(self)

    def _begin(self, name: str, attributes: Attributes, start_time: float) -> OpenSpan:
        self._trace_for(name)
        return self._start(name, attributes, start_time)

    def _start(self, name: str, attributes: Attributes, start_time: float) -> OpenSpan:
        span = self.otel.start_span(name, attributes=attributes, start_time=_nanoseconds(start_time))
        return _OtelSpan(span, name)

    @contextmanager
    def _root(self, trace: Trace, name: str) -> Iterator[None]:
        with self.otel.start_as_current_span(
            name, context=otel_context.Context(), attributes=self.root_attributes
        ) as span:
            trace.root = span.get_span_context()
            yield

    def _around(self, trace: Trace, name: str) -> AbstractContextManager[None]:
        return self._root(trace, name) if self.root_by_hand else self._root_again(trace)

    @contextmanager
    def _root_again(self, trace: Trace) -> Iterator[None]:
        empty = otel_context.Context()
        below = empty if trace.root is None else set_span_in_context(NonRecordingSpan(trace.root), empty)
        token = otel_context.attach(below)
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
    code = OtelStatusCode[status.status_code]
    return Status(code, status.description if code is OtelStatusCode.ERROR else None)
