"""Feedback: what an agent, or a hook, recorded in words about a rollout: `emit_annotation({"feedback": "..."})`."""

from __future__ import annotations

from collections.abc import Sequence

from ...semconv import AGL_ANNOTATION
from ...types import Span

FEEDBACK = "feedback"
"""Name of the annotation."""


def read_feedback(spans: Sequence[Span]) -> str:
    """Return the last feedback among the spans of an attempt; empty when there is none."""
    found = (span.attributes.get(FEEDBACK) for span in reversed(spans) if span.name == AGL_ANNOTATION)
    return next((text for text in found if isinstance(text, str)), "")
