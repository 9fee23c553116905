"""The prompt of a record, whatever its fields are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .messages import (
    Message,
    ShapeError,
    is_conversation,
    is_transcript,
    message_text,
    read_conversation,
    read_history,
    read_transcript,
    system,
    user,
)
from .records import fields_of

PROMPT_FIELDS: tuple[str, ...] = ("prompt", "question", "query", "instruction", "problem", "input", "post")
"""Where a question stands as text, the first that a record has; Alpaca's `input` is joined to its `instruction`."""
CONVERSATION_FIELDS: tuple[str, ...] = ("messages", "conversations", "conversation", "context", "context_messages")
"""Where a conversation stands as a list of messages."""
SYSTEM_FIELDS: tuple[str, ...] = ("system", "system_prompt")


def read_prompt(record: Mapping[str, Any]) -> list[Message]:
    """The messages before the answer: system prompt, earlier turns, question.

    Raises:
        ShapeError: the record has none, or it is empty.
    """
    messages = _turns(record)
    if not any(message_text(message).strip() for message in messages if message["role"] in ("user", "tool")):
        raise ShapeError("empty prompt")
    return with_system(record, messages)


def with_system(record: Mapping[str, Any], messages: Sequence[Message]) -> list[Message]:
    """The messages behind the record's system prompt, if it has one and they do not."""
    text = next((record[name] for name in SYSTEM_FIELDS if record.get(name)), None)
    if not isinstance(text, str) or not text.strip() or any(message["role"] == "system" for message in messages):
        return list(messages)
    return [system(text), *messages]


def _turns(record: Mapping[str, Any]) -> list[Message]:
    for name in CONVERSATION_FIELDS:
        if is_conversation(record.get(name)):
            return read_conversation(record[name], name)
    value = next((record[name] for name in PROMPT_FIELDS if record.get(name)), None)
    history = record.get("history")
    if value is None and isinstance(history, str):
        return [user(history)]
    if isinstance(value, Mapping):
        value = value.get("messages") or value.get("full_text") or value
    if is_conversation(value):
        return read_conversation(value, "prompt")
    if value is None:
        known = any(name in record for name in PROMPT_FIELDS)
        raise ShapeError("empty prompt" if known else "no prompt", "" if known else fields_of(record))
    if not isinstance(value, str):
        raise ShapeError("the prompt is neither text nor messages", type(value).__name__)
    if is_transcript(value):
        turns = read_transcript(value)
        return turns if message_text(turns[-1]) else turns[:-1]
    more = record.get("input")
    if isinstance(more, str) and more.strip() and value == record.get("instruction"):
        value = f"{value}\n{more}"
    return [*read_history(history), user(value)]
