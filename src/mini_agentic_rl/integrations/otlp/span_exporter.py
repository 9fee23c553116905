"""Export the spans of attempts to another tool, from a background thread: a run never waits for it.

An attempt is sent as one trace when it ends. The queue is bounded in spans and characters; spans beyond the bound are
dropped and counted, with one warning at first and the total at the end. If the receiver cannot be reached, one warning
is logged and requests are retried with back-off. `close` sends the rest within a time limit.
"""

from __future__ import annotations

import gzip
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it ships no types
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.sdk.resources import Resource as SdkResource

from ...metrics import counted
from ...redaction import without_secrets
from ...semconv import LightningResourceAttributes
from ...store import ForwardingStore, LightningStore, LightningStoreCapabilities, LightningStoreClient, forward_methods
from ...trainer.settings import TraceExportSettings
from ...types import Attempt, Attributes, Span
from .attempt_trace import AttemptFacts, ExportedSpan, TracePlace, attempt_trace
from .conventions import PROVIDER, ExportedContent, as_json, is_token_fact
from .receiver import Receiver, receiver_of

# Exported spans as an `ExportTraceServiceRequest` of the OpenTelemetry protocol.


_SCOPE: Final = "mini_agentic_rl"
_KINDS: Final = {"client": ProtoSpan.SPAN_KIND_CLIENT, "internal": ProtoSpan.SPAN_KIND_INTERNAL}
_STATUS: Final = {"OK": Status.STATUS_CODE_OK, "ERROR": Status.STATUS_CODE_ERROR}
_LARGEST_INTEGER: Final = 2**63


def proto_span(span: ExportedSpan) -> ProtoSpan:
    """Return a span as a message of the protocol.

    Raises:
        ValueError: one of its ids is not hexadecimal.
    """
    return ProtoSpan(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id) if span.parent_id else b"",
        name=_valid_text(span.name),
        kind=_KINDS[span.kind],
        start_time_unix_nano=_nanoseconds(span.start_time),
        end_time_unix_nano=_nanoseconds(span.end_time),
        attributes=_attributes(span.attributes),
        events=[
            ProtoSpan.Event(
                name=_valid_text(event.name),
                time_unix_nano=_nanoseconds(event.timestamp or span.end_time),
                attributes=_attributes(event.attributes),
            )
            for event in span.events
        ],
        links=[
            ProtoSpan.Link(
                trace_id=bytes.fromhex(link.context.trace_id),
                span_id=bytes.fromhex(link.context.span_id),
                attributes=_attributes(link.attributes or {}),
            )
            for link in span.links
        ],
        status=Status(
            code=_STATUS.get(span.status.status_code, Status.STATUS_CODE_UNSET),
            message=_valid_text(span.status.description or ""),
        ),
    )


def export_request(spans: Iterable[ProtoSpan], resource: Mapping[str, Any], version: str) -> bytes:
    """Return the encoded export request for spans of one resource."""
    scope = ScopeSpans(scope=InstrumentationScope(name=_SCOPE, version=version), spans=spans)
    about = Resource(attributes=_attributes(dict(resource)))
    request = ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=about, scope_spans=[scope])])
    encoded: bytes = request.SerializeToString()
    return encoded


def _attributes(values: Attributes) -> list[KeyValue]:
    return [KeyValue(key=_valid_text(name), value=_value(value)) for name, value in values.items() if value is not None]


def _value(value: Any) -> AnyValue:
    """Return a value of the protocol; values of other types become JSON text."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and _is_flat(value):
        return AnyValue(array_value=ArrayValue(values=[_value(item) for item in value]))
    return AnyValue(string_value=_valid_text(value if isinstance(value, str) else as_json(value)))


def _is_flat(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str | bool | int | float) for value in values)


def _valid_text(text: str) -> str:
    """Return a text that UTF-8 can encode: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))


logger = logging.getLogger(__name__)


MOST_SPANS: Final = 20_000
"""Most queued spans."""
MOST_CHARACTERS: Final = 64_000_000
"""Most characters in the texts of queued spans."""
CLOSE_SECONDS: Final = 10.0
"""Time limit for sending the rest when a run ends, in seconds."""
_A_REQUEST: Final = 512
_BYTES_A_REQUEST: Final = 2_000_000
_REMEMBERED: Final = 4096
"""Ended attempts whose later spans still join their trace."""
_TRY_AGAIN: Final = (408, 429, 500, 502, 503, 504)
_LONGEST_PAUSE: Final = 30.0
_LONGEST_REASON: Final = 200

_Key = tuple[str, str]


@dataclass
class ExportCounts:
    """Numbers of spans since the start."""

    sent: int = 0
    dropped: int = 0


@dataclass
class _Batch:
    """Queued spans of one attempt."""

    facts: AttemptFacts
    spans: list[Span] = field(default_factory=list)
    characters: int = 0


class SpanExporter:
    """Takes spans as they are stored, and sends each attempt when it ends. Its methods never block, except `close`.

    Args:
        receiver: address that the spans are sent to.
        content: optional parts to include.
        resource: resource attributes: the service, the run.
        agent: name of the agent, for the root of each trace.
        version: version of this package.
        most_spans, most_characters: bounds of the queue.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        content: ExportedContent,
        resource: Mapping[str, Any],
        agent: str = "agent",
        version: str = "",
        most_spans: int = MOST_SPANS,
        most_characters: int = MOST_CHARACTERS,
    ) -> None:
        self.receiver = receiver
        self.counts = ExportCounts()
        self._content = content
        self._resource = resource
        self._agent = agent
        self._version = version
        self._most = (most_spans, most_characters)
        self._open: dict[_Key, _Batch] = {}
        self._ready: deque[_Batch] = deque()
        self._waiting = [0, 0]  # spans and characters
        self._ended: OrderedDict[_Key, TracePlace | None] = OrderedDict()
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._warned_of_room = self._is_away = self._is_over = False
        self._refusals: set[str] = set()
        self._client = httpx.Client(timeout=receiver.timeout, verify=receiver.verify)
        self._thread = threading.Thread(target=self._work, name="span-exporter", daemon=True)
        self._thread.start()

    def take(self, spans: Sequence[Span]) -> None:
        """Queue spans until their attempt ends."""
        for span in spans:
            kept, characters = self._without_tokens(span)
            with self._changed:
                if self._deadline is not None or not self._has_room(characters):
                    self._drop(1)
                    continue
                key = (span.rollout_id, span.attempt_id)
                batch = self._open.get(key)
                if batch is None:
                    batch = self._open[key] = _Batch(AttemptFacts(*key, agent=self._agent))
                batch.spans.append(kept)
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
        self._thread.join(seconds + 1.0)
        self._is_over = True
        self._client.close()
        with self._changed:
            self._drop(self._waiting[0])
            self._waiting = [0, 0]
        if self.counts.dropped:
            logger.warning(
                "%s not exported to %s, beside %s that arrived",
                counted(self.counts.dropped, "span was", "spans were"),
                self.receiver.shown,
                f"{self.counts.sent:,}",
            )
        elif self.counts.sent:
            logger.info("%s exported to %s", counted(self.counts.sent, "span"), self.receiver.shown)

    def _without_tokens(self, span: Span) -> tuple[Span, int]:
        """Return the span without token attributes, to save memory, and the size of its texts."""
        facts = span.attributes
        if not self._content.tokens and any(map(is_token_fact, facts)):
            facts = {name: value for name, value in facts.items() if not is_token_fact(name)}
            span = span.model_copy(update={"attributes": facts})
        characters = sum(len(value) for value in facts.values() if isinstance(value, str | list | tuple))
        return span, characters

    def _has_room(self, characters: int) -> bool:
        return self._waiting[0] < self._most[0] and self._waiting[1] + characters <= self._most[1]

    def _drop(self, count: int) -> None:
        self.counts.dropped += count
        if count and not self._warned_of_room and self._deadline is None:
            self._warned_of_room = True
            logger.warning(
                "spans for %s come faster than it takes them: some are dropped from here on; the run goes on",
                self.receiver.shown,
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
                    self.counts.dropped += len(batch.spans)
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    return

    def _send_batch(self, batch: _Batch) -> bool:
        key = (batch.facts.rollout_id, batch.facts.attempt_id)
        place, spans = attempt_trace(batch.facts, batch.spans, self._content, self._ended.get(key))
        with self._changed:
            if key in self._ended:
                self._ended[key] = place
        waiting: list[ProtoSpan] = []
        size = 0
        for span in (proto_span(span) for span in spans):
            if waiting and (len(waiting) == _A_REQUEST or size + span.ByteSize() > _BYTES_A_REQUEST):
                if not self._send(waiting):
                    return False
                waiting, size = [], 0
            waiting.append(span)
            size += span.ByteSize()
        return not waiting or self._send(waiting)

    def _send(self, spans: Sequence[ProtoSpan]) -> bool:
        """Send one request, with retries while the receiver cannot be reached; False if it cannot be sent."""
        body = export_request(spans, self._resource, self._version)
        headers = {"content-type": "application/x-protobuf", **self.receiver.headers}
        if self.receiver.gzip:
            body, headers["content-encoding"] = gzip.compress(body, 1), "gzip"
        pause = 0.5
        while True:
            try:
                response = self._client.post(self.receiver.url, content=body, headers=headers)
            except (httpx.HTTPError, OSError) as error:
                reason, again = f"{type(error).__name__}: {error}", True
            except Exception as error:  # of an invalid header, or of the client that `close` has closed
                if self._is_over:
                    return False
                reason, again = f"{type(error).__name__}: {error}", False
            else:
                if response.is_success:
                    return self._accepted(response, len(spans))
                reason = f"status {response.status_code} {response.text[:_LONGEST_REASON].strip()}".strip()
                again = response.status_code in _TRY_AGAIN
            if not again:
                self._refused(reason)
                return False
            if not self._is_away:
                self._is_away = True
                logger.warning(
                    "spans cannot be exported to %s (%s); the run goes on, and they are kept for a while",
                    self.receiver.shown,
                    without_secrets(reason),
                )
            if not self._pause(pause):
                return False
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _pause(self, seconds: float) -> bool:
        """Wait before the next try; False if there is to be none, because the run has ended."""
        with self._changed:
            if self._deadline is None:
                self._changed.wait_for(lambda: self._deadline is not None, seconds)
                return True  # after the end of the run once more
            self._ready.clear()  # the receiver is unreachable for the others too
            return False

    def _accepted(self, response: httpx.Response, count: int) -> bool:
        if self._is_away:
            self._is_away = False
            logger.info("spans are exported to %s again", self.receiver.shown)
        refused = 0
        try:
            partial = ExportTraceServiceResponse.FromString(response.content).partial_success
            refused = min(count, partial.rejected_spans)
            if refused:
                self._refused(partial.error_message)
        except DecodeError:  # the receiver accepted the spans but sent another kind of body
            pass
        self.counts.sent += count - refused
        self.counts.dropped += refused
        return True

    def _refused(self, reason: str) -> None:
        shown = without_secrets(" ".join(reason.split())[:_LONGEST_REASON]) or "without a reason"
        if shown not in self._refusals and len(self._refusals) < 5:
            self._refusals.add(shown)
            logger.warning("%s refuses spans: %s", self.receiver.shown, shown)


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
    """
    receiver = receiver_of(settings)
    if receiver is None:
        yield store
        return
    if isinstance(store, LightningStoreClient):
        if settings.otlp is not None:
            logger.warning(
                "the spans are in another process's store, which exports them: agl store --otlp %s", settings.otlp
            )
        yield store
        return
    exporter = SpanExporter(
        receiver,
        content=ExportedContent(messages=settings.otlp_messages, tokens=settings.otlp_tokens),
        resource=_resource(run),
        agent=agent,
        version=_version(),
    )
    logger.info("spans are exported to %s", receiver.shown)
    try:
        yield ExportingStore(store, exporter)
    finally:
        exporter.close()


def _resource(run: Path | None) -> dict[str, Any]:
    """Return the resource attributes; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence."""
    attributes: dict[str, Any] = {"service.name": PROVIDER, "service.version": _version()}
    if run is not None:
        attributes["agentlightning.run"] = run.name
    configured = dict(SdkResource.create().attributes)
    if str(configured.get("service.name", "")).startswith("unknown_service"):
        del configured["service.name"]
    return {**attributes, **configured, LightningResourceAttributes.TRACER_NAME.value: "mini_agentic_rl"}


def _version() -> str:
    from ... import __version__

    return __version__
