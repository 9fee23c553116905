"""Convert spans to rows for fine-tuning: the messages and tools of each LLM call, as OpenAI writes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, TypedDict

from ..semconv import CompletionSpanAttributes as Key
from ..types import Span
from .base import TraceAdapter, by_attempt
from .instrumented import completion_of, openai_messages

logger = logging.getLogger(__name__)


class OpenAIMessages(TypedDict):
    """Row for fine-tuning."""

    messages: list[dict[str, Any]]
    """Messages of the conversation, the sampled one last."""
    tools: list[dict[str, Any]] | None
    """Tools that the call offered; None if it offered none."""


class TraceToMessages(TraceAdapter[list[OpenAIMessages]]):
    """Adapter that gives one row per sampled message, in order.

    Spans without messages are left out; those whose messages cannot be read are logged.
    """

    def adapt(self, source: Sequence[Span], /) -> list[OpenAIMessages]:
        rows = []
        for group in by_attempt(source).values():
            for span in group:
                if Key.INPUT_MESSAGES in span.attributes and Key.OUTPUT_MESSAGES in span.attributes:
                    row = _row(span)
                    if row is not None:
                        rows.append(row)
                elif completion_of(span):
                    children = [child for child in group if child.parent_id == span.span_id]
                    messages, tools = openai_messages(span, children)
                    rows.append(OpenAIMessages(messages=messages, tools=tools or None))
        return rows


def parsed_messages(span: Span, key: str) -> list[dict[str, Any]]:
    """Parse the messages under `key`, which are JSON text. A single message becomes a list of one, none an empty list.

    Raises:
        ValueError: the text is no JSON.
    """
    text = span.attributes.get(key)
    if text is None:
        return []
    value = json.loads(text)
    return value if isinstance(value, list) else [value]


def _row(span: Span) -> OpenAIMessages | None:
    try:
        messages = parsed_messages(span, Key.INPUT_MESSAGES) + parsed_messages(span, Key.OUTPUT_MESSAGES)
        tools = parsed_messages(span, Key.TOOL_DEFINITIONS)
    except ValueError as error:
        logger.warning("LLM call %s of rollout %s has unreadable messages: %s", span.span_id, span.rollout_id, error)
        return None
    return OpenAIMessages(messages=messages, tools=tools or None)
