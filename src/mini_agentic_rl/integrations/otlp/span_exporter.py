"""Export the spans of attempts to another tool, from a background thread: a run never waits for it.

An attempt is sent as one trace when it ends, by OpenTelemetry's exporter (http/protobuf), which retries for a while.
The queue is bounded in spans and characters. Spans beyond the bound, and spans that the receiver did not take, are
dropped and counted, with one warning at first and the total at the end. `close` sends the rest within a time limit.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter as OpenTelemetryExporter
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from ...errors import MissingPackageError, UserError
from ...metrics import counted
from ...redaction import without_secrets
from ...semconv import LightningResourceAttributes
from ...store import ForwardingStore, LightningStore, LightningStoreCapabilities, LightningStoreClient, forward_methods
from ...trainer.settings import TraceExportSettings
from ...types import Attempt, Attributes, Span
from .attempt_trace import AttemptFacts, ExportedSpan, TracePlace, attempt_trace
from .conventions import PROVIDER, TOKEN_NAMES, ExportedContent, as_json

logger = logging.getLogger(__name__)

TRACES_PATH: Final = "/v1/traces"
MOST_SPANS: Final = 20_000
"""Most queued spans."""
MOST_CHARACTERS: Final = 64_000_000
"""Most characters in the texts of queued spans."""
CLOSE_SECONDS: Final = 10.0
"""Time limit for sending the rest when a run ends, in seconds."""
_SPANS_PER_REQUEST: Final = 512
_CHARACTERS_PER_REQUEST: Final = 2_000_000
_REMEMBERED: Final = 4096
"""Ended attempts whose later spans still join their trace."""
_LONGEST_REASON: Final = 200
_LARGEST_INTEGER: Final = 2**63
_SCOPE: Final = "mini_agentic_rl"
_EXPORTER_LOGGER: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"

_Key = tuple[str, str]


def receiver_url(settings: TraceExportSettings) -> str | None:
    """Return the address that gets spans, from the settings, else from OpenTelemetry's standard variables.

    Returns None if no address is set, or if the environment turns the export off.

    Raises:
        UserError: the address cannot be used.
    """
    url, setting = settings.otlp, "otlp"
    if url is None:
        url, setting = _url_of_environment(), "OTEL_EXPORTER_OTLP_ENDPOINT"
        if url is None:
            return None
    elif not urlsplit(url).path.rstrip("/").endswith(TRACES_PATH):
        url = url.rstrip("/") + TRACES_PATH
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"{without_secrets(url)} is no address: expected one as http://localhost:6006", setting=setting)
    return url


def _url_of_environment() -> str | None:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp").lower() == "none":
        return None
    url = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    base = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not url and base:
        url = base.rstrip("/") + TRACES_PATH
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if url and protocol == "grpc":
        logger.warning(
            "spans are sent to %s as http/protobuf, not by gRPC as OTEL_EXPORTER_OTLP_PROTOCOL says: "
            "give the address that takes http, mostly at port 4318",
            without_secrets(url),
        )
    return url or None


def readable_span(span: ExportedSpan, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    """Return a span as one of OpenTelemetry's SDK.

    Raises:
        ValueError: one of its ids is not hexadecimal.
    """
    status = Status()
    if span.status.status_code == "ERROR":
        status = Status(StatusCode.ERROR, _valid_text(span.status.description or ""))
    elif span.status.status_code == "OK":
        status = Status(StatusCode.OK)
    return ReadableSpan(
        name=_valid_text(span.name),
        context=_context(span.trace_id, span.span_id),
        parent=None if span.parent_id is None else _context(span.trace_id, span.parent_id),
        resource=resource,
        attributes=_valid_attributes(span.attributes),
        events=[
            Event(
                _valid_text(event.name),
                _valid_attributes(event.attributes),
                _nanoseconds(event.timestamp or span.end_time),
            )
            for event in span.events
        ],
        links=[
            Link(_context(link.context.trace_id, link.context.span_id), _valid_attributes(link.attributes or {}))
            for link in span.links
        ],
        kind=SpanKind.CLIENT if span.kind == "client" else SpanKind.INTERNAL,
        status=status,
        start_time=_nanoseconds(span.start_time),
        end_time=_nanoseconds(span.end_time),
        instrumentation_scope=scope,
    )


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _valid_attributes(attributes: Attributes) -> dict[str, Any]:
    return {_valid_text(name): _valid_value(value) for name, value in attributes.items() if value is not None}


def _valid_value(value: Any) -> Any:
    """Return a value that the protocol has; others become JSON text."""
    if isinstance(value, bool | float) or (isinstance(value, int) and -_LARGEST_INTEGER <= value < _LARGEST_INTEGER):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str | bool | int | float) for item in value):
        return [_valid_value(item) for item in value]
    return _valid_text(value if isinstance(value, str) else as_json(value))


def _valid_text(text: str) -> str:
    """Return a text that UTF-8 can encode: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))


class _FailureReasons(logging.Filter):
    """Holds back what OpenTelemetry's exporter logs in one thread, and keeps the first text since `clear`."""

    def __init__(self, thread: threading.Thread) -> None:
        super().__init__()
        self._thread = thread
        self.first = ""

    def clear(self) -> None:
        self.first = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread.ident:
            return True
        self.first = self.first or record.getMessage()
        return False


@dataclass
class _Batch:
    """Queued spans of one attempt."""

    facts: AttemptFacts
    spans: list[Span] = field(default_factory=list)
    characters: int = 0


class SpanExporter:
    """Takes spans as they are stored, and sends each attempt when it ends. Its methods never block, except `close`.

    Args:
        exporter: OpenTelemetry's exporter, which sends spans.
        url: address of the receiver, for messages.
        content: optional parts to include.
        resource: resource attributes: the service, the run.
        agent: name of the agent, for the root of each trace.
        version: version of this package.
        most_spans, most_characters: bounds of the queue.
    """

    def __init__(
        self,
        exporter: OpenTelemetryExporter,
        url: str,
        *,
        content: ExportedContent,
        resource: Mapping[str, Any],
        agent: str = "agent",
        version: str = "",
        most_spans: int = MOST_SPANS,
        most_characters: int = MOST_CHARACTERS,
    ) -> None:
        self.shown = without_secrets(url)
        self.sent = 0
        """Spans that the receiver took."""
        self.dropped = 0
        """Spans that were not exported."""
        self._exporter = exporter
        self._content = content
        self._resource = Resource(dict(resource))
        self._scope = InstrumentationScope(_SCOPE, version)
        self._agent = agent
        self._most = (most_spans, most_characters)
        self._open: dict[_Key, _Batch] = {}
        self._ready: deque[_Batch] = deque()
        self._waiting = [0, 0]  # spans and characters
        self._ended: OrderedDict[_Key, TracePlace | None] = OrderedDict()
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._warned_of_room = self._is_failing = False
        self._thread = threading.Thread(target=self._work, name="span-exporter", daemon=True)
        self._reasons = _FailureReasons(self._thread)
        logging.getLogger(_EXPORTER_LOGGER).addFilter(self._reasons)
        self._thread.start()

    def take(self, spans: Sequence[Span]) -> None:
        """Queue spans until their attempt ends."""
        for span in spans:
            if not self._content.tokens:  # they would only take memory
                facts = {name: value for name, value in span.attributes.items() if name not in TOKEN_NAMES}
                span = span.model_copy(update={"attributes": facts})
            characters = _characters(span.attributes)
            with self._changed:
                has_room = self._waiting[0] < self._most[0] and self._waiting[1] + characters <= self._most[1]
                if self._deadline is not None or not has_room:
                    self._drop(1)
                    continue
                key = (span.rollout_id, span.attempt_id)
                batch = self._open.get(key)
                if batch is None:
                    batch = self._open[key] = _Batch(AttemptFacts(*key, agent=self._agent))
                batch.spans.append(span)
                batch.characters += characters
                self._waiting[0] += 1
                self._waiting[1] += characters
                if key in self._ended:
                    self._ready.append(self._open.pop(key))
                    self._changed.notify()

    def end(self, facts: AttemptFacts) -> None:
        """Send the spans of an attempt that has ended."""
        key = (facts.rollout_id, facts.attempt_id)
        with self._changed:
            if self._deadline is not None or key in self._ended:
                return
            self._ended[key] = None
            if len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
            batch = self._open.pop(key, None) or _Batch(facts)
            batch.facts = replace(facts, agent=self._agent)
            self._ready.append(batch)
            self._changed.notify()

    def end_rollout(self, rollout_id: str, status: str) -> None:
        """Send the spans of the attempts of a rollout that has ended."""
        with self._changed:
            ended = [batch.facts for (rollout, _), batch in self._open.items() if rollout == rollout_id]
        for facts in ended:
            self.end(replace(facts, status=status))

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send the rest within `seconds`, and log how many spans were dropped, if any."""
        with self._changed:
            if self._deadline is not None:
                return
            self._deadline = time.monotonic() + seconds
            self._ready.extend(self._open.values())
            self._open.clear()
            self._changed.notify()
        self._thread.join(seconds)
        self._exporter.shutdown()  # which ends its retries
        self._thread.join(1.0)
        if not self._thread.is_alive():
            logging.getLogger(_EXPORTER_LOGGER).removeFilter(self._reasons)
        with self._changed:
            self._drop(self._waiting[0])
            self._waiting = [0, 0]
        if self.dropped:
            logger.warning(
                "%s not exported to %s, beside %s that arrived",
                counted(self.dropped, "span was", "spans were"),
                self.shown,
                f"{self.sent:,}",
            )
        elif self.sent:
            logger.info("%s exported to %s", counted(self.sent, "span"), self.shown)

    def _drop(self, count: int) -> None:
        self.dropped += count
        if count and not self._warned_of_room and self._deadline is None:
            self._warned_of_room = True
            logger.warning(
                "spans for %s come faster than it takes them: some are dropped from here on; the run goes on",
                self.shown,
            )

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._ready and self._deadline is None:
                    self._changed.wait()
                if not self._ready:
                    return
                batch = self._ready.popleft()
            try:
                sent = self._send_batch(batch)
            except Exception:  # one malformed span must not end the export of the others
                logger.exception("the spans of attempt %s could not be exported", batch.facts.attempt_id)
                sent = False
            with self._changed:
                self._waiting[0] -= len(batch.spans)
                self._waiting[1] -= batch.characters
                if not sent:
                    self.dropped += len(batch.spans)
                if self._deadline is not None and (self._is_failing or time.monotonic() >= self._deadline):
                    return

    def _send_batch(self, batch: _Batch) -> bool:
        """Send the spans of one attempt in requests of bounded size; False if one of them failed."""
        key = (batch.facts.rollout_id, batch.facts.attempt_id)
        place, spans = attempt_trace(batch.facts, batch.spans, self._content, self._ended.get(key))
        with self._changed:
            if key in self._ended:
                self._ended[key] = place
        request: list[ReadableSpan] = []
        size = 0
        for span in spans:
            characters = _characters(span.attributes)
            if request and (len(request) == _SPANS_PER_REQUEST or size + characters > _CHARACTERS_PER_REQUEST):
                if not self._send(request):
                    return False
                request, size = [], 0
            request.append(readable_span(span, self._resource, self._scope))
            size += characters
        return not request or self._send(request)

    def _send(self, spans: Sequence[ReadableSpan]) -> bool:
        self._reasons.clear()
        is_sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        if is_sent:
            self.sent += len(spans)
            if self._is_failing:
                logger.info("spans are exported to %s again", self.shown)
        elif not self._is_failing:
            reason = " ".join(self._reasons.first.split())[:_LONGEST_REASON] or "without a reason"
            logger.warning("spans cannot be exported to %s (%s); the run goes on", self.shown, without_secrets(reason))
        self._is_failing = not is_sent
        return is_sent


def _characters(attributes: Attributes) -> int:
    return sum(len(value) for value in attributes.values() if isinstance(value, str | list | tuple))


# A store that exports the spans which pass through it.


_SPANS: Final = ("add_span", "add_many_spans", "add_otel_span")
_ENDED: Final = ("succeeded", "failed", "timeout", "unresponsive", "cancelled")


class ExportingStore(ForwardingStore):
    """Store that passes every stored span and the end of attempts to an exporter.

    Pickled, it becomes the wrapped store: spans are exported from this process only.

    Args:
        store: the wrapped store.
        exporter: takes the spans; closed by its creator.
    """

    def __init__(self, store: LightningStore, exporter: SpanExporter) -> None:
        self.store = store
        self._exporter = exporter

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.store,)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self.store.capabilities

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()

    async def close(self) -> None:
        await self.store.close()

    async def _forward(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = await getattr(self.store, name)(*args, **kwargs)
        try:
            self._look_at(name, result)
        except Exception:  # the store has succeeded; an export error must not fail the call
            logger.exception("the spans of %s could not be exported", name)
        return result

    def _look_at(self, name: str, result: Any) -> None:
        if name in _SPANS:
            stored = [result] if isinstance(result, Span) else result
            if stored:
                self._exporter.take(stored)
        elif name == "update_attempt" and isinstance(result, Attempt) and result.status in _ENDED:
            self._exporter.end(
                AttemptFacts(
                    rollout_id=result.rollout_id,
                    attempt_id=result.attempt_id,
                    agent="",
                    status=result.status,
                    number=result.sequence_id,
                    error=None if result.metadata.get("error") is None else str(result.metadata["error"]),
                    start_time=result.start_time,
                    end_time=result.end_time,
                )
            )
        elif name == "update_rollout" and result.status in _ENDED:
            self._exporter.end_rollout(result.rollout_id, result.status)


forward_methods(ExportingStore)


def _same(store: LightningStore) -> LightningStore:
    return store


@contextmanager
def exported(
    store: LightningStore, settings: TraceExportSettings, *, agent: str = "agent", run: Path | None = None
) -> Iterator[LightningStore]:
    """Yield the store, wrapped to export its spans if the settings or the environment name an address.

    Args:
        store: an open store of this process.
        agent: name of the agent.
        run: folder of the run.

    Raises:
        UserError: the address of the settings cannot be used.
        MissingPackageError: OpenTelemetry's exporter is not installed.
    """
    url = receiver_url(settings)
    if url is None:
        yield store
        return
    if isinstance(store, LightningStoreClient):
        if settings.otlp is not None:
            logger.warning(
                "the spans are in another process's store, which exports them: agl store --otlp %s", settings.otlp
            )
        yield store
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        package = "opentelemetry-exporter-otlp-proto-http"
        raise MissingPackageError("sending spans over OTLP", package, extra="services", setting="otlp") from error
    from ... import __version__

    exporter = SpanExporter(
        OTLPSpanExporter(endpoint=url),  # it reads the headers and other options from the standard variables
        url,
        content=ExportedContent(messages=settings.otlp_messages, tokens=settings.otlp_tokens),
        resource=_resource(run, __version__),
        agent=agent,
        version=__version__,
    )
    logger.info("spans are exported to %s", exporter.shown)
    try:
        yield ExportingStore(store, exporter)
    finally:
        exporter.close()


def _resource(run: Path | None, version: str) -> dict[str, Any]:
    """Return the resource attributes; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence."""
    attributes: dict[str, Any] = {"service.name": PROVIDER, "service.version": version}
    if run is not None:
        attributes["agentlightning.run"] = run.name
    configured = dict(Resource.create().attributes)
    if str(configured.get("service.name", "")).startswith("unknown_service"):
        del configured["service.name"]
    return {**attributes, **configured, LightningResourceAttributes.TRACER_NAME.value: "mini_agentic_rl"}
