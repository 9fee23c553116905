"""The face of every adapter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

from opentelemetry.sdk.trace import ReadableSpan

from ..types import Span

FromT = TypeVar("FromT")
ToT = TypeVar("ToT")


class Adapter(ABC, Generic[FromT, ToT]):
    """Turns one form of data into another; calling it is the same as `adapt`."""

    def __call__(self, source: FromT, /) -> ToT:
        return self.adapt(source)

    @abstractmethod
    def adapt(self, source: FromT, /) -> ToT:
        """The data in the other form."""


class OtelTraceAdapter(Adapter[Sequence[ReadableSpan], ToT], Generic[ToT]):
    """Reads spans of the OpenTelemetry SDK."""


class TraceAdapter(Adapter[Sequence[Span], ToT], Generic[ToT]):
    """Reads stored spans, in any order; their order is that of `sequence_id`."""


AttemptKey: TypeAlias = tuple[str, str]


def by_attempt(spans: Sequence[Span]) -> dict[AttemptKey, list[Span]]:
    """The spans of each (rollout id, attempt id), ordered by `sequence_id`; attempts in the order of first sight."""
    attempts: dict[AttemptKey, list[Span]] = {}
    for span in spans:
        attempts.setdefault((span.rollout_id, span.attempt_id), []).append(span)
    return {key: sorted(group, key=lambda span: span.sequence_id) for key, group in attempts.items()}
