"""The tracer without OpenTelemetry: spans go straight to the store, with no root span around them."""

from __future__ import annotations

from typing import Any

from .base import Tracer, recipe_of


class DummyTracer(Tracer):
    """Tracer that writes `Span` objects directly. Operations are parents of what is emitted inside them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return recipe_of(self)
