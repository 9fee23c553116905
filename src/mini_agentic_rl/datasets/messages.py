"""Conversations as OpenAI writes them, from the ways in which data sets write them.

Read here: OpenAI messages, ShareGPT turns (`from`, `value`), lists of [question, answer] pairs, and transcripts of
"\\n\\nHuman: …\\n\\nAssistant: …". What comes out holds only the fields of `_FIELDS`; texts are left as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..rewards import message_text
from .records import fields_of

Message: TypeAlias = dict[str, Any]

_FIELDS = ("role", "content", "reasoning_content", "name", "tool_calls", "tool_call_id")
_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "function_call",
    "tool_call": "function_call",
}
_SPEAKER = re.compile(r"(?:\A|\n\n)(Human|Assistant):[ \t]?")


class ShapeError(ValueError):
    """A record that is not what was asked for. `reason` says why in words that are the same for all such records."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def user(text: str) -> Message:
    """Return a user message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """Return an assistant message."""
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    """Return a system message."""
    return {"role": "system", "content": text}


def is_conversation(value: Any) -> bool:
    """Return True if a value is a list of messages or of ShareGPT turns (of which not even one has to be right)."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and ("role" in item or "from" in item) for item in value)
    )


def read_conversation(value: Any, field: str = "messages") -> list[Message]:
    """Return OpenAI messages, read from messages or ShareGPT turns. `field` is the name that an error gives the value.

    A turn of the role `function_call` becomes a message with tool calls; tool results without an id get that of the
    call that they answer.

    Raises:
        ShapeError: no list of messages, an unknown role, or a message that says nothing.
    """
    if isinstance(value, Mapping):
        value = [value]
    if not is_conversation(value):
        raise ShapeError(f"{field} is no list of messages")
    messages: list[Message] = []
    waiting: list[str] = []
    calls = 0
    for item in value:
        message = _message(item, field, calls)
        if made := message.get("tool_calls"):
            calls += len(made)
            waiting = [call["id"] for call in made]
        if message["role"] == "tool" and "tool_call_id" not in message and waiting:
            message["tool_call_id"] = waiting.pop(0)
        messages.append(message)
    return messages


def read_history(value: Any, field: str = "history") -> list[Message]:
    """Return earlier turns: a list of [question, answer] pairs, or messages.

    Raises:
        ShapeError: neither of these.
    """
    if not value:
        return []
    if is_conversation(value):
        return read_conversation(value, field)
    if not isinstance(value, list):
        raise ShapeError(f"{field} is no list of [question, answer] pairs")
    messages: list[Message] = []
    for pair in value:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ShapeError(f"{field} is no list of [question, answer] pairs")
        question, answer = pair
        if not isinstance(question, str) or not isinstance(answer, str):
            raise ShapeError(f"{field} is no list of [question, answer] pairs")
        messages += [user(question), assistant(answer)]
    return messages


def is_transcript(value: Any) -> bool:
    """Return True if a value is a text in which Human and Assistant take turns."""
    return isinstance(value, str) and value.lstrip().startswith("Human:") and "\n\nAssistant:" in value


def read_transcript(text: str) -> list[Message]:
    """Return the turns of a transcript; a mark of the same speaker again belongs to what that speaker says."""
    text = text.strip("\n")
    marks = list(_SPEAKER.finditer(text))
    messages: list[Message] = []
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        said = text[mark.end() : following.start() if following else len(text)]
        role = "user" if mark[1] == "Human" else "assistant"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{said.strip()}"
        else:
            messages.append({"role": role, "content": said.strip()})
    return messages


def question_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the first user message; without one, all texts."""
    first = next((message for message in messages if message.get("role") == "user"), None)
    return message_text(first) if first is not None else "\n".join(map(message_text, messages))


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Return tools that a record offers, from a list or its JSON text; None without any.

    Raises:
        ShapeError: neither of these.
    """
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ShapeError("tools are not valid JSON") from None
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
        raise ShapeError("tools are no list of objects")
    return [dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)} for tool in value]


def _message(item: Mapping[str, Any], field: str, calls: int) -> Message:
    said = item.get("role") or item.get("from")
    role = _ROLES.get(said.lower()) if isinstance(said, str) else None
    if role is None:
        raise ShapeError(f"{field} has an unknown role", repr(said)[:60])
    content = item["value"] if item.get("content") is None and "value" in item else item.get("content")
    if role == "function_call":
        return {"role": "assistant", "content": None, "tool_calls": _calls(content, field, calls)}
    message = {key: item[key] for key in _FIELDS if item.get(key) is not None}
    message |= {"role": role, "content": _content(content, field)}
    if "tool_calls" in message and not isinstance(message["tool_calls"], list):
        raise ShapeError(f"{field} has tool calls that are no list")
    if message.get("tool_calls"):
        message["tool_calls"] = [_call(call, field, calls + at) for at, call in enumerate(message["tool_calls"], 1)]
    elif role == "assistant" and not (message["content"] or "").strip():
        raise ShapeError(f"{field} has an empty answer")
    elif message["content"] is None:
        raise ShapeError(f"{field} has a message without content")
    else:
        message.pop("tool_calls", None)
    return message


def _content(content: Any, field: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        if any(part.get("type", "text") not in ("text", "input_text", "output_text") for part in content):
            raise ShapeError(f"{field} holds something else than text", "images and sound are not trained on")
        return "".join(str(part.get("text", "")) for part in content)
    raise ShapeError(f"{field} has content that is no text", type(content).__name__)


def _calls(content: Any, field: str, before: int) -> list[dict[str, Any]]:
    """Tool calls out of the JSON text of a `function_call` turn: one call, or a list of them."""
    try:
        found = json.loads(content) if isinstance(content, str) else content
    except (ValueError, RecursionError):
        raise ShapeError(f"{field} has a tool call that is not valid JSON") from None
    return [_call(call, field, before + at) for at, call in enumerate(found if isinstance(found, list) else [found], 1)]


def _call(call: Any, field: str, number: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ShapeError(f"{field} has a tool call without a name")
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    identity = call.get("id") or f"call_{number}"
    return {"id": identity, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


PROMPT_FIELDS: tuple[str, ...] = ("prompt", "question", "query", "instruction", "problem", "input", "post")
"""Fields with the question as text, the first that a record has; Alpaca's `input` is joined to its `instruction`."""
CONVERSATION_FIELDS: tuple[str, ...] = ("messages", "conversations", "conversation", "context", "context_messages")
"""Fields with the conversation as a list of messages."""
SYSTEM_FIELDS: tuple[str, ...] = ("system", "system_prompt")


def read_prompt(record: Mapping[str, Any]) -> list[Message]:
    """Return the messages before the answer: system prompt, earlier turns, question.

    Raises:
        ShapeError: the record has none, or it is empty.
    """
    messages = _turns(record)
    if not any(message_text(message).strip() for message in messages if message["role"] in ("user", "tool")):
        raise ShapeError("empty prompt")
    return with_system(record, messages)


def with_system(record: Mapping[str, Any], messages: Sequence[Message]) -> list[Message]:
    """Return the messages after the record's system prompt, if it has one and they do not."""
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
