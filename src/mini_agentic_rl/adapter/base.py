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


def by_attempt(spans: Sequence[Span]) -> dict[AttemptKey, list[Span]]:
    """Group spans by (rollout id, attempt id), each group ordered by `sequence_id`.

    Attempts come in the order of first sight.
    """
    attempts: dict[AttemptKey, list[Span]] = {}
    for span in spans:
        attempts.setdefault((span.rollout_id, span.attempt_id), []).append(span)
    return {key: sorted(group, key=lambda span: span.sequence_id) for key, group in attempts.items()}
