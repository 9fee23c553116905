"""One attempt as one trace: `invoke_agent` at its root, and calls, tools and operations below it.

The gateway records calls without knowing the agent's spans. Here all spans of an attempt get one trace id. A span
without a parent becomes a child of the span that encloses it in time, else of the root, which is the tracer's or is
created. If the agent's tools were not traced, their spans are inferred from the messages: a tool ran between the call
that requested it and the call that received its result.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ...adapter import Hierarchy
from ...emitter import find_reward_spans, get_reward_value, get_rewards_from_span, is_rollout_reward
from ...semconv import GenAiAttributes as Gen
from ...semconv import LightningResourceAttributes, LightningSpanAttributes
from ...types import Attributes, Event, Link, Span, SpanContext, TraceStatus
from .conventions import (
    PROVIDER,
    ChatCall,
    ExportedContent,
    as_json,
    cut,
    described,
    input_messages,
    is_call,
    is_tool,
    message_parts,
    output_messages,
    read_call,
    tool_arguments,
)

INFERRED: Final = "agentlightning.inferred"
"""Attribute of a tool's span that was inferred from the messages: it spans the time between two calls."""

_ROLLOUT: Final = LightningResourceAttributes.ROLLOUT_ID.value
_ATTEMPT: Final = LightningResourceAttributes.ATTEMPT_ID.value
_FAILED: Final = ("failed", "timeout", "unresponsive")


@dataclass(frozen=True)
class AttemptFacts:
    """The attempt whose spans are exported."""

    rollout_id: str
    attempt_id: str
    agent: str
    """Name of the agent, for the root."""
    status: str | None = None
    """None while it runs."""
    number: int = 1
    error: str | None = None
    """Reason for which it failed."""
    start_time: float | None = None
    end_time: float | None = None

    @property
    def ids(self) -> Attributes:
        """Attributes of every span of the attempt."""
        return {_ROLLOUT: self.rollout_id, _ATTEMPT: self.attempt_id, Gen.CONVERSATION: self.rollout_id}


@dataclass(frozen=True)
class ExportedSpan:
    """A span as it is exported."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start_time: float
    end_time: float
    attributes: Attributes
    kind: Literal["client", "internal"] = "internal"
    status: TraceStatus = field(default_factory=TraceStatus)
    events: Sequence[Event] = ()
    links: Sequence[Link] = ()


@dataclass(frozen=True)
class TracePlace:
    """The trace of an attempt, and its root."""

    trace_id: str
    root_id: str


def attempt_trace(
    facts: AttemptFacts, spans: Sequence[Span], content: ExportedContent, place: TracePlace | None = None
) -> tuple[TracePlace, list[ExportedSpan]]:
    """Return where the trace of an attempt is, and its spans, the root first.

    Args:
        facts: the attempt.
        spans: its stored spans, in any order.
        content: optional parts to include.
        place: place of the trace for spans that arrive after the root was exported; no root is returned then.
    """
    root = next((span for span in spans if span.parent_id is None and span.name == facts.rollout_id), None)
    known = place
    if known is None and root is not None:
        known = TracePlace(root.trace_id, root.span_id)
    known = known or TracePlace(_digest(facts, "trace", 16), _digest(facts, "root", 8))
    others = sorted((span for span in spans if span is not root), key=lambda span: span.start_time or 0.0)
    calls = {span.span_id: read_call(span) for span in others if is_call(span)}
    tools = {str(tool.get("name") or _function(tool).get("name")) for call in calls.values() for tool in call.tools}
    attempt = _AttemptSpans(facts, known, Hierarchy(spans, repair=True), content)
    below = [attempt.exported(span, calls.get(span.span_id), tools) for span in others]
    if not any(is_tool(span, tools) for span in others):
        below += attempt.tool_runs([span for span in others if span.span_id in calls], calls)
    below.sort(key=lambda span: span.start_time)
    if place is not None:
        return known, below
    return known, [_root(facts, known, root, spans, below, list(calls.values()), content), *below]


@dataclass(frozen=True)
class _AttemptSpans:
    facts: AttemptFacts
    place: TracePlace
    hierarchy: Hierarchy
    content: ExportedContent

    def exported(self, span: Span, call: ChatCall | None, tools: set[str]) -> ExportedSpan:
        name, attributes = described(span, call, tools, self.content)
        start = span.start_time or span.end_time or 0.0
        status = span.status
        if status.status_code == "ERROR" and "error.type" not in attributes:
            attributes["error.type"] = str(attributes.get("exception.type") or "_OTHER")
        return ExportedSpan(
            name=name,
            kind="internal" if call is None else "client",
            trace_id=self.place.trace_id,
            span_id=span.span_id,
            parent_id=self.hierarchy.parent_id(span) or self.place.root_id,
            start_time=start,
            end_time=max(start, span.end_time or start),
            attributes={**attributes, **self.facts.ids},
            status=status if call is None or status.status_code == "ERROR" else TraceStatus(),
            events=[*span.events, *_evaluations(span)],
            links=[*span.links, *self._elsewhere(span)],
        )

    def tool_runs(self, spans: Sequence[Span], calls: Mapping[str, ChatCall]) -> list[ExportedSpan]:
        """Return spans of the tools that calls requested and whose results later calls received."""
        results: dict[str, tuple[float, Any]] = {}
        for span in reversed(spans):  # the first call that received a result wins
            for message in calls[span.span_id].inputs:
                if message.get("role") == "tool" and message.get("tool_call_id"):
                    results[str(message["tool_call_id"])] = (span.start_time or 0.0, message)
        runs: dict[str, ExportedSpan] = {}
        for span in spans:
            requested = [message.get("tool_calls") for message in calls[span.span_id].outputs]
            for call in itertools.chain.from_iterable(each for each in requested if isinstance(each, list)):
                identity = str(call.get("id")) if isinstance(call, Mapping) else None
                if identity in results and identity not in runs:
                    runs[identity] = self._tool_run(span, call, *results[identity])
        return list(runs.values())

    def _tool_run(self, parent: Span, call: Mapping[str, Any], end: float, message: Mapping[str, Any]) -> ExportedSpan:
        function, start = _function(call), parent.end_time or parent.start_time or end
        name, identity = str(function.get("name") or "tool"), str(call.get("id"))
        attributes: Attributes = {
            Gen.OPERATION: Gen.EXECUTE_TOOL,
            Gen.TOOL_NAME: name,
            Gen.TOOL_TYPE: "function",
            Gen.TOOL_CALL_ID: identity,
            INFERRED: True,
            **self.facts.ids,
        }
        if self.content.messages:
            arguments = tool_arguments(function.get("arguments"))
            attributes[Gen.TOOL_ARGUMENTS] = arguments if isinstance(arguments, str) else as_json(arguments)
            parts = message_parts(message)
            attributes[Gen.TOOL_RESULT] = cut("".join(str(part.get("response", "")) for part in parts))
        return ExportedSpan(
            name=f"{Gen.EXECUTE_TOOL} {name}",
            trace_id=self.place.trace_id,
            span_id=_digest(self.facts, f"tool {parent.span_id} {identity}", 8),
            parent_id=self.hierarchy.parent_id(parent) or self.place.root_id,
            start_time=start,
            end_time=max(start, end),
            attributes=attributes,
        )

    def _elsewhere(self, span: Span) -> list[Link]:
        """Return a link to the parent span in another trace that the agent's request named."""
        if span.parent_id is None or self.hierarchy.parent_id(span) == span.parent_id:
            return []
        if span.trace_id == self.place.trace_id:
            return []
        return [Link(context=SpanContext(trace_id=span.trace_id, span_id=span.parent_id, is_remote=True))]


def _root(
    facts: AttemptFacts,
    place: TracePlace,
    root: Span | None,
    spans: Sequence[Span],
    below: Sequence[ExportedSpan],
    calls: Sequence[ChatCall],
    content: ExportedContent,
) -> ExportedSpan:
    attributes: Attributes = {
        Gen.OPERATION: Gen.INVOKE_AGENT,
        Gen.PROVIDER: PROVIDER,
        Gen.AGENT_NAME: facts.agent,
        "agentlightning.attempt": facts.number,
        **facts.ids,
    }
    for key in (Gen.INPUT_TOKENS, Gen.OUTPUT_TOKENS):
        counts = [span.attributes[key] for span in below if span.kind == "client" and key in span.attributes]
        if counts:
            attributes[key] = sum(counts)
    if content.messages and calls:
        attributes[Gen.INPUT_MESSAGES] = as_json(input_messages(calls[0].inputs))
        attributes[Gen.OUTPUT_MESSAGES] = as_json(output_messages(calls[-1].outputs, ()))
    rewards = find_reward_spans(spans)
    counting = [span for span in rewards if is_rollout_reward(span)] or rewards
    final = counting[-1] if counting else None
    if final is not None:
        attributes[LightningSpanAttributes.REWARD.value] = get_reward_value(final)
    status = TraceStatus()
    if facts.status is not None:
        attributes["agentlightning.status"] = facts.status
        if facts.status in _FAILED:
            attributes["error.type"] = facts.status
            status = TraceStatus(status_code="ERROR", description=facts.error or facts.status)
    times = [time for span in below for time in (span.start_time, span.end_time)]
    known = [time for time in (root.start_time if root else None, facts.start_time) if time]
    start = min([*known, *times], default=0.0)
    ends = [time for time in (root.end_time if root else None, facts.end_time) if time]
    return ExportedSpan(
        name=f"{Gen.INVOKE_AGENT} {facts.agent}",
        trace_id=place.trace_id,
        span_id=place.root_id,
        parent_id=None,
        start_time=start,
        end_time=max([start, *ends, *times]),
        attributes=attributes,
        status=status,
        events=[*(root.events if root else ()), *(_evaluations(final) if final is not None else ())],
        links=root.links if root else (),
    )


def _evaluations(span: Span) -> list[Event]:
    """Return an event for each number of a reward."""
    return [
        Event(
            name=Gen.EVALUATION_EVENT,
            attributes={Gen.EVALUATION_NAME: reward.name, Gen.EVALUATION_SCORE: reward.value},
            timestamp=span.start_time,
        )
        for reward in get_rewards_from_span(span)
    ]


def _digest(facts: AttemptFacts, text: str, size: int) -> str:
    """Return an id derived from the attempt and the text."""
    whole = f"{facts.rollout_id}\0{facts.attempt_id}\0{text}"
    return hashlib.blake2b(whole.encode("utf-8", "replace"), digest_size=size).hexdigest()


def _function(given: Mapping[str, Any]) -> Mapping[str, Any]:
    function = given.get("function")
    return function if isinstance(function, Mapping) else {}
