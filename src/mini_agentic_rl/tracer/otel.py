"""Tracing by OpenTelemetry: the tracer of runners, and `init`, which records the instrumented libraries of the process.

A span belongs to the open trace of the task where it starts. Each `OtelTracer` has a provider of its own and never
changes that of the process. To record an instrumentation library, give it `OtelTracer.provider`, or call `init`, which
adds a processor to the provider of the process. The processor routes the spans of a rollout to its trace, for any
tracer of the runner; spans outside of rollouts go to an OTLP endpoint, if there is one.
"""

from __future__ import annotations

# At a fork, handlers of the child run in the order in which they were registered. A provider registers one that starts
# threads of an executor: registered before those of this module, it would wait forever for a lock that they release.
import concurrent.futures.thread  # noqa: F401
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
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

from ..config import LightningEnvVar, resolve_str_env_var
from ..errors import MissingPackageError, UserError
from ..semconv import LightningResourceAttributes
from ..types import Attributes, Span, SpanCoreFields
from .base import Tracer, get_open_trace, recipe_of, remember_init
from .spans import OpenSpan, Trace

logger = logging.getLogger(__name__)

TRACER_NAME: Final = LightningResourceAttributes.TRACER_NAME.value
"""Resource attribute of the spans of an `OtelTracer`."""

_UNLIMITED = SpanLimits(
    max_attributes=SpanLimits.UNSET,
    max_events=SpanLimits.UNSET,
    max_links=SpanLimits.UNSET,
    max_span_attributes=SpanLimits.UNSET,
    max_attribute_length=SpanLimits.UNSET,
    max_span_attribute_length=SpanLimits.UNSET,
)


class TraceRouter(SpanProcessor):
    """Span processor that sends each ended span to the trace that was open where the span started.

    Args:
        open_trace: returns the open trace of the calling task, if any.
        elsewhere: gets the spans outside of traces.
    """

    def __init__(self, open_trace: Callable[[], Trace | None], elsewhere: SpanProcessor | None = None) -> None:
        self._open_trace = open_trace
        self._elsewhere = elsewhere
        self._lock = threading.Lock()
        self._trace_of: WeakValueDictionary[int, Trace] = WeakValueDictionary()  # a span may never end

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
        code = OtelStatusCode[status_code]
        self._span.set_status(Status(code, description if code is OtelStatusCode.ERROR else None))

    def get_recorded_span(self) -> SpanCoreFields:
        if not isinstance(self._span, ReadableSpan):  # the sampler of a foreign provider dropped it
            return SpanCoreFields(name=self._name)
        stored = Span.from_opentelemetry(self._span, "", "", 0)
        return SpanCoreFields(**{name: getattr(stored, name) for name in SpanCoreFields.model_fields})

    def inside(self) -> AbstractContextManager[otel.Span]:
        return otel.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self, end_time: float) -> None:
        self._span.end(end_time=_nanoseconds(end_time))


class OtelTrace(Trace):
    """Trace of an `OtelTracer`, with the methods of an OpenTelemetry tracer that start spans."""

    def start_span(self, name: str, **arguments: Any) -> otel.Span:
        """Start a span of this trace; the arguments are those of OpenTelemetry's method."""
        return self._otel.start_span(name, **arguments)

    def start_as_current_span(self, name: str, **arguments: Any) -> AbstractContextManager[otel.Span]:
        """Return a block inside a span of this trace; the arguments are those of OpenTelemetry's method."""
        return self._otel.start_as_current_span(name, **arguments)

    @property
    def _otel(self) -> otel.Tracer:
        assert isinstance(self.tracer, OtelTracer)  # only an OtelTracer makes such traces
        return self.tracer.otel


class OtelTracer(Tracer):
    """Tracer on the OpenTelemetry SDK: a root span per trace, operations and emitted spans below it.

    Raises:
        RuntimeError: the environment switches the OpenTelemetry SDK off.
    """

    _trace_type = OtelTrace
    root_by_hand: ClassVar[bool] = True
    """True if a trace that no runner opens gets a root span as well. Programs under agent-lightning's name expect none
    (`compat.alias`)."""
    root_attributes: ClassVar[Attributes] = {}
    """Attributes of the root span of each trace."""

    def __init__(self) -> None:
        self.provider = make_provider(Resource({TRACER_NAME: "mini_agentic_rl"}), shutdown_on_exit=False)
        """Provider of the spans that reach the store."""
        self.provider.add_span_processor(TraceRouter(self._open_trace))
        self.otel = tracer_of(self.provider)
        """Tracer of the OpenTelemetry SDK."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Make another tracer in another process, with a provider of its own."""
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
    """Make a provider that samples all spans and limits no attributes."""
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


_ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_TRACES_PATH: Final = "/v1/traces"

_lock = threading.Lock()
_done: list[TracerProvider] = []
"""Provider of the process after `init`; at most one."""


def init(endpoint: str | None = None, *, api_key: str | None = None) -> None:
    """Turn on OpenTelemetry tracing for this process. Call it first; further calls change nothing.

    An existing provider of the process is kept, with its processors, and gets one more. Emitters outside of rollouts
    work if there is an endpoint or an existing provider.

    Processes that runners start are traced like this one. The spans of other processes of an agent belong to a rollout
    if the environment names it: `OTEL_RESOURCE_ATTRIBUTES=agentlightning.rollout_id=…,agentlightning.attempt_id=…`.

    Args:
        endpoint: OTLP destination of spans outside of rollouts: the address of a store server, or a URL that ends in
            /v1/traces. None takes OTEL_EXPORTER_OTLP_ENDPOINT; without an endpoint they are dropped.
        api_key: bearer token for `endpoint`; None takes AGL_API_KEY.

    Raises:
        UserError: the OTLP exporter is not installed, or the provider of the process is not of the SDK.
        RuntimeError: the environment switches the OpenTelemetry SDK off.
    """
    with _lock:
        if _done:
            if endpoint is not None:
                logger.warning("init(endpoint=%r) has no effect: init was called before", endpoint)
            return
        elsewhere = _sender(endpoint, api_key)
        existing = otel.get_tracer_provider()
        if isinstance(existing, TracerProvider):
            provider, is_ours = existing, False
        elif isinstance(existing, otel.ProxyTracerProvider):
            provider, is_ours = make_provider(Resource.create(), shutdown_on_exit=True), True
        else:
            raise UserError(
                f"init: the tracer provider of the process, {type(existing).__qualname__}, takes no span processors: "
                "set a TracerProvider of the OpenTelemetry SDK, or none"
            )
        tracer = _ProcessTracer(provider)
        provider.add_span_processor(_RolloutProcessor(elsewhere))
        if is_ours:
            otel.set_tracer_provider(provider)
        records = elsewhere is not None or not is_ours
        remember_init(partial(init, endpoint, api_key=api_key), tracer if records else None)
        _done.append(provider)


class _RolloutProcessor(TraceRouter):
    """Router of the spans of the process, except those of an `OtelTracer`, which routes its own."""

    def __init__(self, elsewhere: SpanProcessor | None) -> None:
        super().__init__(get_open_trace, elsewhere)

    def on_start(self, span: SdkSpan, parent_context: object = None) -> None:
        if TRACER_NAME not in span.resource.attributes:
            super().on_start(span)

    def on_end(self, span: ReadableSpan) -> None:
        if TRACER_NAME not in span.resource.attributes:
            super().on_end(span)


class _ProcessTracer(OtelTracer):
    """Tracer of tasks without an active one: its spans come from the provider of the process and need no trace."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self.otel = tracer_of(provider)

    def _begin(self, name: str, attributes: Attributes, start_time: float) -> OpenSpan:
        return self._start(name, attributes, start_time)


def _sender(endpoint: str | None, api_key: str | None) -> SpanProcessor | None:
    """Return a processor that sends spans over OTLP, in batches; None without an endpoint."""
    if endpoint is None and not any(os.environ.get(name) for name in _ENDPOINT_VARIABLES):
        return None
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        package = "opentelemetry-exporter-otlp-proto-http"
        raise MissingPackageError("sending spans over OTLP", package, extra="services") from error
    if endpoint is None:
        return BatchSpanProcessor(OTLPSpanExporter())  # it reads the standard variables itself
    url = endpoint.rstrip("/")
    key = resolve_str_env_var(LightningEnvVar.AGL_API_KEY, override=api_key)
    exporter = OTLPSpanExporter(
        endpoint=url if url.endswith(_TRACES_PATH) else url + _TRACES_PATH,
        headers=None if key is None else {"authorization": f"Bearer {key}"},
    )
    return BatchSpanProcessor(exporter)
