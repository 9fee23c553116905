"""The conversations of a rollout as JSON values with bounded texts, for a page or a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

from ..types import Span
from .messages import TraceToMessages

SHOWN: Final = 20_000
"""Maximum number of characters of a text that is sent to a page."""


class Text(TypedDict):
    """A text, or the beginning of a long one."""

    text: str
    more: int
    """Number of characters that were cut off."""


class ToolCall(TypedDict):
    """A call of a tool within a message."""

    name: Text
    arguments: Text
    id: str | None


class Message(TypedDict):
    """One message."""

    role: str
    content: Text
    calls: list[ToolCall]
    answers: str | None
    """Id of the tool call that it answers."""


class Conversation(TypedDict):
    """Messages in order."""

    attempt: str
    messages: list[Message]
    calls: int
    """Number of LLM calls in it."""
    tools: list[str]
    """Names of the tools on offer."""


def conversations(spans: Sequence[Span], *, shown: int = SHOWN) -> list[Conversation]:
    """Return the conversations of the attempts among the spans, in order.

    A call whose messages begin with all messages of an earlier call continues that conversation. Any other call begins
    a new one, as after a fork, or by another agent.
    """
    attempts = dict.fromkeys(span.attempt_id for span in spans)
    result: list[Conversation] = []
    for attempt in attempts:
        threads: list[tuple[list[Any], int, list[str]]] = []
        for row in TraceToMessages().adapt([span for span in spans if span.attempt_id == attempt]):
            messages = row["messages"]
            names = [_tool_name(tool) for tool in row["tools"] or ()]
            before = next((i for i, (old, _, _) in enumerate(threads) if _continues(messages, old)), None)
            if before is None:
                threads.append((messages, 1, names))
            else:
                threads[before] = (messages, threads[before][1] + 1, names)
        for messages, calls, names in threads:
            shaped = [_shown_message(message, shown) for message in messages]
            result.append(Conversation(attempt=attempt, messages=shaped, calls=calls, tools=names))
    return result


def text_of(value: Any, shown: int = SHOWN) -> Text:
    """Return any value as a text: itself, the texts of a list of parts, or JSON."""
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        value = "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in value)
    if value is None:
        value = ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return Text(text=text[:shown], more=max(0, len(text) - shown))


def _continues(messages: Sequence[Any], old: Sequence[Any]) -> bool:
    return len(messages) > len(old) and all(map(_same_message, messages, old))


def _same_message(first: Any, second: Any) -> bool:
    """Compare two messages; clients leave out empty fields when they send a message again."""
    if first == second or not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return bool(first == second)
    names = ("role", "content", "tool_call_id")
    return all((first.get(name) or None) == (second.get(name) or None) for name in names)


def _shown_message(message: Any, shown: int) -> Message:
    if not isinstance(message, Mapping):
        return Message(role="", content=text_of(message, shown), calls=[], answers=None)
    calls = message.get("tool_calls")
    answers = message.get("tool_call_id")
    return Message(
        role=str(message.get("role") or "")[:100],
        content=text_of(message.get("content"), shown),
        calls=[_shown_call(call, shown) for call in (calls if isinstance(calls, list) else ())],
        answers=None if answers is None else str(answers)[:200],
    )


def _shown_call(call: Any, shown: int) -> ToolCall:
    facts = call if isinstance(call, Mapping) else {}
    function = facts.get("function")
    function = function if isinstance(function, Mapping) else {}
    return ToolCall(
        name=text_of(function.get("name"), 200),
        arguments=text_of(function.get("arguments"), shown),
        id=None if facts.get("id") is None else str(facts["id"])[:200],
    )


def _tool_name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return str(function.get("name") if isinstance(function, Mapping) else "")[:200]
