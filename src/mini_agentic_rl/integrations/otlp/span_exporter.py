"""Send the spans of attempts to another tool, from a thread of its own: a run never waits for it.

An attempt is sent as one trace when it ends. What waits is bounded in spans and in characters; what finds no room is
dropped and counted, which one line says, and the sum is told at the end. While the receiver is away, one warning says
so, and it is tried again from time to time. `close` sends what is left within a bound.
"""

from __future__ import annotations

import gzip
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it ships no types
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from ...metrics import counted
from ...redaction import without_secrets
from ...types import Span
from .attempt_trace import AttemptFacts, TracePlace, attempt_trace
from .conventions import ExportedContent, is_token_fact
from .otlp_message import export_request, proto_span
from .receiver import Receiver

logger = logging.getLogger(__name__)

MOST_SPANS: Final = 20_000
"""Spans that wait, at most."""
MOST_CHARACTERS: Final = 64_000_000
"""Characters of the texts of spans that wait, at most."""
CLOSE_SECONDS: Final = 10.0
"""Seconds for what is left when a run ends."""
_A_REQUEST: Final = 512
_BYTES_A_REQUEST: Final = 2_000_000
_REMEMBERED: Final = 4096
"""Attempts that have ended, whose later spans still find their trace."""
_TRY_AGAIN: Final = (408, 429, 500, 502, 503, 504)
_LONGEST_PAUSE: Final = 30.0
_LONGEST_REASON: Final = 200

_Key = tuple[str, str]


@dataclass
class ExportCounts:
    """Spans since the beginning."""

    sent: int = 0
    dropped: int = 0


@dataclass
class _Batch:
    """Spans of one attempt, that ended or of which more came afterwards."""

    facts: AttemptFacts
    spans: list[Span] = field(default_factory=list)
    characters: int = 0


class SpanExporter:
    """Takes spans as they are stored, and sends each attempt when it ends. Its methods never wait, but for `close`.

    Args:
        receiver: where they go.
        content: what goes along.
        resource: attributes of what makes the spans: the service, the run.
        agent: name of the agent, for the root of each trace.
        version: of this package.
        most_spans, most_characters: bounds of what waits.
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
        """Keep spans until their attempt ends."""
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
        """Send what there is of an attempt, which has ended."""
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
        """Send what there is of the attempts of a rollout, which has ended."""
        with self._changed:
            found = [batch.facts for (rollout, _), batch in self._open.items() if rollout == rollout_id]
        for facts in found:
            self.end(replace(facts, status=status))

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is left, for at most so many seconds, and say how many spans were dropped, if any were."""
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
        """Return the span without what is not exported, so that it takes no memory, and the size of its texts."""
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
            except Exception:  # a span that cannot be told must not end the export of the others
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
        """Send one request, again and again while the receiver is away; False if it cannot be sent."""
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
            except Exception as error:  # of a header that httpx does not take, or of its end below us
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
            self._ready.clear()  # a receiver that is away now will not be there for the others
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
        except DecodeError:  # a receiver that answers in its own way has taken them all the same
            pass
        self.counts.sent += count - refused
        self.counts.dropped += refused
        return True

    def _refused(self, reason: str) -> None:
        told = without_secrets(" ".join(reason.split())[:_LONGEST_REASON]) or "without a reason"
        if told not in self._refusals and len(self._refusals) < 5:
            self._refusals.add(told)
            logger.warning("%s refuses spans: %s", self.receiver.shown, told)
