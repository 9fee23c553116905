"""The base of adapters, and the parents and agents of the spans of one attempt.

The gateway records LLM calls apart from the agent's spans, so these calls have no parent. `repair` makes the shortest
span that encloses such a call in time its parent, assuming that agent and gateway share a clock. If several
instrumentations trace one agent, calls may have the root of the trace as parent; they are moved likewise, unless the
root is the span of an agent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

from opentelemetry.sdk.trace import ReadableSpan

from ..semconv import CompletionSpanAttributes as Key
from ..types import Span

FromT = TypeVar("FromT")
ToT = TypeVar("ToT")


class Adapter(ABC, Generic[FromT, ToT]):
    """Converts data from one form into another. Calling the object calls `adapt`."""

    def __call__(self, source: FromT, /) -> ToT:
        return self.adapt(source)

    @abstractmethod
    def adapt(self, source: FromT, /) -> ToT:
        """Return the data in the other form."""


class OtelTraceAdapter(Adapter[Sequence[ReadableSpan], ToT], Generic[ToT]):
    """Adapter of spans of the OpenTelemetry SDK."""


class TraceAdapter(Adapter[Sequence[Span], ToT], Generic[ToT]):
    """Adapter of stored spans in any order; `sequence_id` gives their order."""


AttemptKey: TypeAlias = tuple[str, str]


def by_attempt(spans: Sequence[Span | ReadableSpan]) -> dict[AttemptKey, list[Span]]:
    """Group spans by (rollout id, attempt id), each group ordered by `sequence_id`.

    Attempts are in the order of their first span. Spans of the SDK form one attempt, in the order of their ends.
    """
    attempts: dict[AttemptKey, list[Span]] = {}
    unnumbered = sorted((span for span in spans if isinstance(span, ReadableSpan)), key=lambda span: span.end_time or 0)
    numbered = [span for span in spans if isinstance(span, Span)]
    numbered += [Span.from_opentelemetry(span, "", "", number) for number, span in enumerate(unnumbered, 1)]
    for span in numbered:
        attempts.setdefault((span.rollout_id, span.attempt_id), []).append(span)
    return {key: sorted(group, key=lambda span: span.sequence_id) for key, group in attempts.items()}


_CALL_MARKS = (Key.REQUEST_MODEL, Key.RESPONSE_ID, Key.PROMPT_TOKEN_IDS)
"""Attributes of LLM calls; the span of a call has at least one of them."""

_AGENT_NAMES = (
    "gen_ai.agent.name",
    "agent.name",
    "recipient_agent_type",
    "langchain.chain.type",
    "executor.id",
)
"""Attributes of tracing libraries with the name of an agent, the most reliable first."""


class Hierarchy:
    """Parents of the spans of one attempt.

    Args:
        spans: all spans of the attempt.
        repair: give spans without a known parent the shortest span that encloses them in time.
    """

    def __init__(self, spans: Sequence[Span], repair: bool) -> None:
        self._spans = {span.span_id: span for span in spans}
        self._parent: dict[str, str | None] = {}
        for span in spans:
            known = span.parent_id if span.parent_id in self._spans and span.parent_id != span.span_id else None
            self._parent[span.span_id] = known
        if repair:
            timed = [span for span in spans if _duration(span) > 0]
            for span in [span for span in spans if self._is_loose(span)]:
                self._parent[span.span_id] = _tightest(span, timed) or self._parent[span.span_id]

    def _is_loose(self, span: Span) -> bool:
        """Return True if the span has no parent, or is a call whose parent is a root without an agent."""
        parent = self._parent[span.span_id]
        if parent is None:
            return True
        is_call = any(mark in span.attributes for mark in _CALL_MARKS)
        return is_call and self._parent[parent] is None and _own_agent_name(self._spans[parent]) is None

    def lineage(self, span: Span) -> Iterator[Span]:
        """Yield the span, its parent, and so on up to the root."""
        seen: set[str] = set()
        span_id: str | None = span.span_id
        while span_id is not None and span_id not in seen:
            seen.add(span_id)
            yield self._spans[span_id]
            span_id = self._parent[span_id]

    def agent_name(self, span: Span) -> str | None:
        """Return the name of the nearest agent around the span, or None."""
        names = (_own_agent_name(ancestor) for ancestor in self.lineage(span))
        return next((name for name in names if name is not None), None)

    def is_inside(self, span: Span, container: Callable[[Span], bool]) -> bool:
        """Return True if an ancestor of the span is such a container."""
        return any(container(ancestor) for ancestor in self.lineage(span) if ancestor is not span)

    def parent_id(self, span: Span) -> str | None:
        """Return the span id of the parent, or None for a root."""
        return self._parent[span.span_id]


def _own_agent_name(span: Span) -> str | None:
    """Return the name of the agent of this span, or None."""
    facts = span.attributes
    names = [facts.get(attribute) for attribute in _AGENT_NAMES]
    if facts.get("agentops.span.kind") == "agent":
        names.append(facts.get("operation.name"))
    if facts.get("type") == "agent":  # Weave
        names.append(facts.get("agentlightning.operation.input.name"))
    if span.name.startswith("langchain.Chain."):  # Weave, of LangChain
        names.append(facts.get("lc_name"))
    return next((str(name) for name in names if name), None)


def _duration(span: Span) -> float:
    if span.start_time is None or span.end_time is None:
        return 0.0
    return span.end_time - span.start_time


def _tightest(span: Span, candidates: Sequence[Span]) -> str | None:
    """Return the span id of the shortest candidate that encloses `span` and is longer than it."""
    start, end = span.start_time, span.end_time
    if start is None or end is None:
        return None
    enclosing = [
        other
        for other in candidates
        if other.start_time is not None
        and other.end_time is not None
        and other.start_time <= start
        and end <= other.end_time
        and _duration(other) > _duration(span)
    ]
    return min(enclosing, key=_duration).span_id if enclosing else None
