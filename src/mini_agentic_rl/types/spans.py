"""Spans as they are stored: OpenTelemetry's, plus the rollout, the attempt and an order that survives clock skew."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext as OtelSpanContext

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
Attributes: TypeAlias = dict[str, Any]


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


class TraceStatus(BaseModel):
    """OpenTelemetry's span status: UNSET, OK or ERROR."""

    status_code: str = "UNSET"
    description: str | None = None


class Event(BaseModel):
    """Something that happened at one instant of a span."""

    name: str
    attributes: Attributes = Field(default_factory=dict)
    timestamp: float | None = None


class SpanContext(BaseModel):
    """Identity of a span: 32 hex digits of trace id, 16 of span id."""

    trace_id: str
    span_id: str
    is_remote: bool = False
    trace_state: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def from_opentelemetry(cls, context: OtelSpanContext) -> SpanContext:
        return cls(
            trace_id=f"{context.trace_id:032x}",
            span_id=f"{context.span_id:016x}",
            is_remote=context.is_remote,
            trace_state=dict(context.trace_state.items()),
        )


class Link(BaseModel):
    """A reference from one span to another."""

    context: SpanContext
    attributes: Attributes | None = None


class OtelResource(BaseModel):
    """Description of what produced the span."""

    attributes: Attributes = Field(default_factory=dict)
    schema_url: str = ""


class SpanCoreFields(BaseModel):
    """Fields of a span that a caller decides; ids and order are added by the tracer and the store."""

    name: str
    attributes: Attributes = Field(default_factory=dict)
    status: TraceStatus = Field(default_factory=TraceStatus)
    start_time: float | None = None
    end_time: float | None = None
    links: list[Link] = Field(default_factory=list)
    events: list[Event] = Field(default_factory=list)


class Span(BaseModel):
    """One span of one attempt. Unknown fields are kept."""

    model_config = ConfigDict(extra="allow")

    rollout_id: str
    attempt_id: str
    sequence_id: int = Field(description="Order within the attempt, given out by the store, from 1.")
    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str
    status: TraceStatus = Field(default_factory=TraceStatus)
    attributes: Attributes = Field(default_factory=dict)
    events: list[Event] = Field(default_factory=list)
    links: list[Link] = Field(default_factory=list)
    start_time: float | None = None
    end_time: float | None = None
    context: SpanContext | None = None
    parent: SpanContext | None = None
    resource: OtelResource = Field(default_factory=OtelResource)

    @classmethod
    def from_opentelemetry(cls, src: ReadableSpan, rollout_id: str, attempt_id: str, sequence_id: int) -> Span:
        """Convert an OpenTelemetry span to its stored form.

        Raises:
            ValueError: the span has no context.
        """
        context = src.get_span_context()
        if context is None:
            raise ValueError(f"span {src.name!r} has no context")
        return cls(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            trace_id=f"{context.trace_id:032x}",
            span_id=f"{context.span_id:016x}",
            parent_id=f"{src.parent.span_id:016x}" if src.parent else None,
            name=src.name,
            status=TraceStatus(status_code=src.status.status_code.name, description=src.status.description),
            attributes=_plain(src.attributes),
            events=[
                Event(name=event.name, attributes=_plain(event.attributes), timestamp=_seconds(event.timestamp))
                for event in src.events
            ],
            links=[
                Link(context=SpanContext.from_opentelemetry(link.context), attributes=_plain(link.attributes))
                for link in src.links
            ],
            start_time=_seconds(src.start_time),
            end_time=_seconds(src.end_time),
            context=SpanContext.from_opentelemetry(context),
            parent=SpanContext.from_opentelemetry(src.parent) if src.parent else None,
            resource=OtelResource(attributes=_plain(src.resource.attributes), schema_url=src.resource.schema_url),
        )

    @classmethod
    def from_attributes(
        cls,
        *,
        attributes: Attributes,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
        name: str | None = None,
        trace_id: str | None = None,
        span_id: str | None = None,
        parent_id: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        resource: OtelResource | None = None,
        status: TraceStatus | None = None,
        events: list[Event] | None = None,
        links: list[Link] | None = None,
    ) -> Span:
        """Make a span by hand. Ids that are not given are drawn at random, times are now."""
        now = time.time()
        return cls(
            rollout_id=rollout_id or "",
            attempt_id=attempt_id or "",
            sequence_id=sequence_id or 0,
            trace_id=trace_id or uuid.uuid4().hex,
            span_id=span_id or uuid.uuid4().hex[:16],
            parent_id=parent_id,
            name=name or "agentlightning.virtual",
            status=status or TraceStatus(),
            attributes=attributes,
            events=events or [],
            links=links or [],
            start_time=now if start_time is None else start_time,
            end_time=now if end_time is None else end_time,
            resource=resource or OtelResource(),
        )

    @classmethod
    def from_core_fields(
        cls,
        core: SpanCoreFields,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
        trace_id: str | None = None,
        span_id: str | None = None,
        parent_id: str | None = None,
        resource: OtelResource | None = None,
    ) -> Span:
        """Make a span from what a caller decided about it."""
        return cls.from_attributes(
            attributes=core.attributes,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            name=core.name,
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            start_time=core.start_time,
            end_time=core.end_time,
            resource=resource,
            status=core.status,
            events=core.events,
            links=core.links,
        )


def _plain(attributes: Mapping[str, Any] | None) -> Attributes:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (attributes or {}).items()}
