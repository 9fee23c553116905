"""`init`: OpenTelemetry tracing for the whole process, so that any instrumented library is recorded.

Libraries that are instrumented with OpenTelemetry make their spans with the provider of the process. `init` sees to it
that there is one, and puts a processor into it that looks where each span starts: inside a rollout, the span belongs to
its trace, whatever tracer the runner has; outside of every rollout it goes to an OTLP endpoint, if there is one.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from typing import Final

from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan

from ..config import LightningEnvVar, resolve_str_env_var
from ..errors import MissingPackageError, UserError
from ..types import Attributes
from .base import get_open_trace, remember_init, set_process_tracer
from .open_span import OpenSpan
from .otel import TRACER_NAME, OtelTracer, TraceRouter, make_provider, tracer_of

logger = logging.getLogger(__name__)

_ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_TRACES_PATH: Final = "/v1/traces"

_lock = threading.Lock()
_done: list[TracerProvider] = []
"""Provider that `init` has equipped; at most one."""


def init(endpoint: str | None = None, *, api_key: str | None = None) -> None:
    """Turn on OpenTelemetry tracing for this process. Call it first; calling it again changes nothing.

    A provider that the process has already is kept, with its own processors, and gets one more. Emitters work outside
    of rollouts as well if their spans have somewhere to go: an endpoint, or the provider that was there.

    Processes that runners start for themselves or for their agents are traced like this one. The spans of an agent that
    was started otherwise belong to a rollout if its environment says to which:
    `OTEL_RESOURCE_ATTRIBUTES=agentlightning.rollout_id=…,agentlightning.attempt_id=…`.

    Args:
        endpoint: where spans outside of every rollout go over OTLP: the address of a store server, or a URL that ends
            in /v1/traces. None takes OTEL_EXPORTER_OTLP_ENDPOINT; without that they are dropped.
        api_key: bearer token for `endpoint`; None takes AGL_API_KEY.

    Raises:
        UserError: the OTLP exporter is not installed, or the process has a provider that is not of the SDK.
        RuntimeError: the environment switches the OpenTelemetry SDK off.
    """
    with _lock:
        if _done:
            if endpoint is not None:
                logger.warning("init(endpoint=%r) has no effect: init was called before", endpoint)
            return
        elsewhere = _sender(endpoint, api_key)
        there = otel.get_tracer_provider()
        if isinstance(there, TracerProvider):
            provider, is_ours = there, False
        elif isinstance(there, otel.ProxyTracerProvider):
            provider, is_ours = make_provider(Resource.create(), shutdown_on_exit=True), True
        else:
            raise UserError(
                f"init: the tracer provider of the process, {type(there).__qualname__}, takes no span processors: "
                "set a TracerProvider of the OpenTelemetry SDK, or none"
            )
        tracer = _ProcessTracer(provider)
        provider.add_span_processor(_RolloutProcessor(elsewhere))
        if is_ours:
            otel.set_tracer_provider(provider)
        if elsewhere is not None or not is_ours:
            set_process_tracer(tracer)
        remember_init(partial(init, endpoint, api_key=api_key))
        _done.append(provider)


class _RolloutProcessor(TraceRouter):
    """Router of the process's spans; those of an `OtelTracer` are routed by that tracer itself."""

    def __init__(self, elsewhere: SpanProcessor | None) -> None:
        super().__init__(get_open_trace, elsewhere)

    def on_start(self, span: SdkSpan, parent_context: object = None) -> None:
        if TRACER_NAME not in span.resource.attributes:
            super().on_start(span)

    def on_end(self, span: ReadableSpan) -> None:
        if TRACER_NAME not in span.resource.attributes:
            super().on_end(span)


class _ProcessTracer(OtelTracer):
    """Tracer of tasks without one: its spans come from the provider of the process and need no trace."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self.otel = tracer_of(provider)

    def _begin(self, name: str, attributes: Attributes, start_time: float) -> OpenSpan:
        return self._start(name, attributes, start_time)


def _sender(endpoint: str | None, api_key: str | None) -> SpanProcessor | None:
    """Return what sends spans over OTLP, in batches, or None where there is nowhere to send them to."""
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
