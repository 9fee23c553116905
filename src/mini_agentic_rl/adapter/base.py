"""The base of every adapter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

from opentelemetry.sdk.trace import ReadableSpan

from ..types import Span

FromT = TypeVar("FromT")
ToT = TypeVar("ToT")


class Adapter(ABC, Generic[FromT, ToT]):
    """Converter of one form of data into another. Calling it is the same as `adapt`."""

    def __call__(self, source: FromT, /) -> ToT:
        return self.adapt(source)

    @abstractmethod
    def adapt(self, source: FromT, /) -> ToT:
        """Return the data in the other form."""


class OtelTraceAdapter(Adapter[Sequence[ReadableSpan], ToT], Generic[ToT]):
    """Adapter of spans of the OpenTelemetry SDK."""


class TraceAdapter(Adapter[Sequence[Span], ToT], Generic[ToT]):
    """Adapter of stored spans, which come in any order; their order is that of `sequence_id`."""


AttemptKey: TypeAlias = tuple[str, str]


def by_attempt(spans: Sequence[Span | ReadableSpan]) -> dict[AttemptKey, list[Span]]:
    """Group spans by (rollout id, attempt id), each group ordered by `sequence_id`.

    Attempts come in the order of first sight. Spans of the SDK belong to one attempt, in the order of their ends.
    """
    attempts: dict[AttemptKey, list[Span]] = {}
    unnumbered = sorted((span for span in spans if isinstance(span, ReadableSpan)), key=lambda span: span.end_time or 0)
    numbered = [span for span in spans if isinstance(span, Span)]
    numbered += [Span.from_opentelemetry(span, "", "", number) for number, span in enumerate(unnumbered, 1)]
    for span in numbered:
        attempts.setdefault((span.rollout_id, span.attempt_id), []).append(span)
    return {key: sorted(group, key=lambda span: span.sequence_id) for key, group in attempts.items()}
