"""Spans as they are stored: OpenTelemetry's with rollout, attempt and an order that is independent of clocks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, Union

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource as OtelSdkResource
    from opentelemetry.sdk.trace import Event as OtelEvent
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Link as OtelLink
    from opentelemetry.trace import SpanContext as OtelSpanContext
    from opentelemetry.trace import Status as OtelStatus

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
Attributes: TypeAlias = dict[str, Any]
TraceState: TypeAlias = dict[str, str]
StatusCode: TypeAlias = Literal["UNSET", "OK", "ERROR"]


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


class TraceStatus(BaseModel):
    """OpenTelemetry's span status: UNSET, OK or ERROR."""

    status_code: str = "UNSET"
    description: str | None = None

    @classmethod
    def from_opentelemetry(cls, src: OtelStatus) -> TraceStatus:
        return cls(status_code=src.status_code.name, description=src.description)


class Event(BaseModel):
    """An event at one instant of a span."""

    name: str
    attributes: Attributes = Field(default_factory=dict)
    timestamp: float | None = None

    @classmethod
    def from_opentelemetry(cls, src: OtelEvent) -> Event:
        return cls(name=src.name, attributes=_plain(src.attributes), timestamp=_seconds(src.timestamp))


class SpanContext(BaseModel):
    """Identity of a span: 32 hex digits of trace id, 16 of span id."""

    trace_id: str
    span_id: str
    is_remote: bool = False
    trace_state: TraceState = Field(default_factory=dict)

    @classmethod
    def from_opentelemetry(cls, src: OtelSpanContext) -> SpanContext:
        return cls(
            trace_id=f"{src.trace_id:032x}",
            span_id=f"{src.span_id:016x}",
            is_remote=src.is_remote,
            trace_state=dict(src.trace_state.items()),
        )


class Link(BaseModel):
    """A reference from one span to another."""

    context: SpanContext
    attributes: Attributes | None = None

    @classmethod
    def from_opentelemetry(cls, src: OtelLink) -> Link:
        return cls(context=SpanContext.from_opentelemetry(src.context), attributes=_plain(src.attributes))


class OtelResource(BaseModel):
    """Description of the source of a span."""

    attributes: Attributes = Field(default_factory=dict)
    schema_url: str = ""

    @classmethod
    def from_opentelemetry(cls, src: OtelSdkResource) -> OtelResource:
        return cls(attributes=_plain(src.attributes), schema_url=src.schema_url)


class SpanCoreFields(BaseModel):
    """Fields of a span that a caller sets; the tracer and the store add ids and order."""

    name: str
    attributes: Attributes = Field(default_factory=dict)
    status: TraceStatus = Field(default_factory=TraceStatus)
    start_time: float | None = None
    end_time: float | None = None
    links: list[Link] = Field(default_factory=list)
    events: list[Event] = Field(default_factory=list)


class SpanRecordingContext(Protocol):
    """Span that is still open."""

    def record_attributes(self, attributes: Attributes) -> None:
        """Add attributes to the span, or replace those of the same names."""
        raise NotImplementedError

    def record_exception(self, exception: BaseException) -> None:
        """Add the exception as an event."""
        raise NotImplementedError

    def record_status(self, status_code: str, description: str | None = None) -> None:
        """Set the status."""
        raise NotImplementedError

    def get_recorded_span(self) -> SpanCoreFields:
        """Return what has been recorded so far."""
        raise NotImplementedError


class Span(BaseModel):
    """A span of an attempt. Unknown fields are kept."""

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
    events: list[Event] = Field(default_factory=list, fail_fast=True)
    links: list[Link] = Field(default_factory=list, fail_fast=True)
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
            status=TraceStatus.from_opentelemetry(src.status),
            attributes=_plain(src.attributes),
            events=[Event.from_opentelemetry(event) for event in src.events],
            links=[Link.from_opentelemetry(link) for link in src.links],
            start_time=_seconds(src.start_time),
            end_time=_seconds(src.end_time),
            context=SpanContext.from_opentelemetry(context),
            parent=SpanContext.from_opentelemetry(src.parent) if src.parent else None,
            resource=OtelResource.from_opentelemetry(src.resource),
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
        """Create a span. By default its ids are random, its times are now, and its status is OK."""
        now = time.time()
        return cls(
            rollout_id=rollout_id or "",
            attempt_id=attempt_id or "",
            sequence_id=sequence_id or 0,
            trace_id=trace_id or uuid.uuid4().hex,
            span_id=span_id or uuid.uuid4().hex[:16],
            parent_id=parent_id,
            name=name or "agentlightning.virtual",
            status=status or TraceStatus(status_code="OK"),
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
        """Create a span from the fields that a caller set."""
        return cls.from_attributes(
            **vars(core),
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            resource=resource,
        )


def _plain(attributes: Mapping[str, Any] | None) -> Attributes:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (attributes or {}).items()}


SpanLike: TypeAlias = Union["ReadableSpan", Span]  # a name in quotes has no `|`
"""Span of the OpenTelemetry SDK, or a stored one."""


class SpanNames(str, Enum):
    """Names of agent-lightning 0.2 and early 0.3, which are now in `semconv`."""

    REWARD = "agentlightning.reward"
    MESSAGE = "agentlightning.message"
    OBJECT = "agentlightning.object"
    EXCEPTION = "agentlightning.exception"
    VIRTUAL = "agentlightning.virtual"
    ROLLOUT_ID = "agentlightning.rollout_id"
    ATTEMPT_ID = "agentlightning.attempt_id"
    SPAN_SEQUENCE_ID = "agentlightning.span_sequence_id"


class SpanAttributeNames(str, Enum):
    """Attribute names of agent-lightning 0.2."""

    MESSAGE = "message"
    OBJECT = "object"
