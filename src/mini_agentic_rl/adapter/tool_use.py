"""Tool calls of a rollout, counted without reading its messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ..semconv import CompletionSpanAttributes as Key
from ..types import Span
from .records import is_completion

_CALLS: Final = re.compile(r'(?<!\\)"tool_calls"\s*:\s*\[\s*\{')
"""Tool calls in the JSON of a message; within a text of it quotes are escaped."""


def tool_calls(spans: Sequence[Span]) -> int | None:
    """Return the number of LLM calls among `spans` that were answered by a call of a tool; None where none was offered
    a tool."""
    calls = [span.attributes for span in spans if is_completion(span)]
    if not any(Key.TOOL_DEFINITIONS in facts for facts in calls):
        return None
    return sum(_CALLS.search(str(facts.get(Key.OUTPUT_MESSAGES, ""))) is not None for facts in calls)
