"""Conversations as OpenAI writes them, from the ways in which data sets write them.

Read here: OpenAI messages, ShareGPT turns (`from`, `value`), lists of [question, answer] pairs, and transcripts of
"\\n\\nHuman: …\\n\\nAssistant: …". What comes out holds only the fields of `_FIELDS`; texts are left as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..rewards import message_text
from .records import fields_of
from .turns import Message as Message
from .turns import ShapeError as ShapeError
from .turns import is_call, read_text, read_turn

_SPEAKER = re.compile(r"(?:\A|\n\n)(Human|Assistant):[ \t]?")


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
    # `dict` first: a check against an abstract class takes several times as long
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict | Mapping) and ("role" in item or "from" in item) for item in value)
    )


def read_conversation(value: Any, field: str = "messages") -> list[Message]:
    """Return OpenAI messages, read from messages or ShareGPT turns. `field` is the name that an error gives the value.

    Turns of the role `function_call` become tool calls of the answer before them; tool results without an id get that
    of the call that they answer. An answer that is marked as not to be trained has `train` False.

    Raises:
        ShapeError: no list of messages, or one of them cannot be read.
    """
    if isinstance(value, Mapping):
        value = [value]
    if not is_conversation(value):
        raise ShapeError(f"{field} is no list of messages", _as_told(value))
    messages: list[Message] = []
    waiting: list[Mapping[str, Any]] = []
    calls = 0
    for item in value:
        for message in read_turn(item, field, calls):
            last = messages[-1] if messages else message
            if message["role"] == "tool":
                _name_call(message, waiting)
            elif made := message.get("tool_calls"):
                calls += len(made)
                joins = is_call(item) and last["role"] == "assistant" and last.get("train") == message.get("train")
                if joins and last is not message:
                    last["tool_calls"] = [*last.get("tool_calls", ()), *made]
                    waiting += made
                    continue
                waiting = list(made)
            messages.append(message)
    return messages


def _name_call(result: Message, waiting: list[Mapping[str, Any]]) -> None:
    """Give a tool result without an id that of the call that it answers, by its name or else its place."""
    if "tool_call_id" not in result and waiting:
        name = result.get("name")
        call = next((call for call in waiting if call["function"]["name"] == name), waiting[0])
        result["tool_call_id"] = call["id"]
    if waiting:
        waiting[:] = [call for call in waiting if call["id"] != result.get("tool_call_id")]


def _as_told(value: Any) -> str:
    if isinstance(value, str):
        return "it is text, and not the JSON text of messages"
    return "it is empty" if value == [] else f"it is of the type {type(value).__name__}"


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


def without_marks(messages: Sequence[Message]) -> list[Message]:
    """Return messages of a prompt, of which nothing is trained, without the marks that say so."""
    return [
        {name: value for name, value in message.items() if name != "train"} if "train" in message else message
        for message in messages
    ]


def refuse_untrained(messages: Sequence[Message], field: str) -> None:
    """Refuse an answer that is marked as not to be trained, where the form of training has no other use for it.

    Raises:
        ShapeError: it is.
    """
    for message in messages:
        if "train" in message:
            raise ShapeError(f"{field} is marked as not to be trained")


def question_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the first user message; without one, all texts."""
    first = next((message for message in messages if message.get("role") == "user"), None)
    return message_text(first) if first is not None else "\n".join(map(message_text, messages))


def tools_of(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the tools that a record offers; None without any. `functions` is the older name of `tools`, and OpenAI's
    preferences have them in `input`.

    Raises:
        ShapeError: as `read_tools`.
    """
    value = record.get("tools")
    if not value and isinstance(given := record.get("input"), dict):
        value = given.get("tools")
    if not value and isinstance(older := record.get("functions"), list) and all(map(_is_function, older)):
        value = older
    return read_tools(value) if value else None


def _is_function(value: Any) -> bool:
    return isinstance(value, Mapping) and "name" in value


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Return tools as OpenAI writes them, from a list of OpenAI's or Anthropic's, or its JSON text; None without any.

    Raises:
        ShapeError: neither of these.
    """
    value = _from_json(value)
    if not value:
        return None
    if not isinstance(value, list):
        raise ShapeError("tools are no list of objects")
    return [_tool(_from_json(tool)) for tool in value]


def _from_json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) and value.strip() else value
    except (ValueError, RecursionError):
        raise ShapeError("tools are not valid JSON") from None


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise ShapeError("tools are no list of objects")
    if "function" in tool:
        return dict(tool)
    function = {"parameters" if name == "input_schema" else name: value for name, value in tool.items()}
    return {"type": "function", "function": function}


PROMPT_FIELDS: tuple[str, ...] = ("prompt", "question", "query", "instruction", "problem", "input", "post")
"""Fields with the question as text, the first that a record has; Alpaca's `input` is joined to its `instruction`."""
CONVERSATION_FIELDS: tuple[str, ...] = ("messages", "conversations", "conversation", "context", "context_messages")
"""Fields with the conversation as a list of messages."""
SYSTEM_FIELDS: tuple[str, ...] = ("system", "system_prompt")
_SYSTEM = frozenset(SYSTEM_FIELDS)


def conversation_field(record: Mapping[str, Any]) -> str | None:
    """Return the first of `CONVERSATION_FIELDS` that holds a conversation; None without one."""
    for name in CONVERSATION_FIELDS:
        if name in record and is_conversation(record[name]):
            return name
    return None


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
    if _SYSTEM.isdisjoint(record):
        return list(messages)
    name = next((name for name in SYSTEM_FIELDS if record.get(name)), "")
    if not name or any(message["role"] in ("system", "developer") for message in messages):
        return list(messages)
    text = read_text(record[name], name) or ""
    return [system(text), *messages] if text.strip() else list(messages)


def _turns(record: Mapping[str, Any]) -> list[Message]:
    name = conversation_field(record)
    if name is not None:
        return read_conversation(record[name], name)
    value = next((record[name] for name in PROMPT_FIELDS if record.get(name)), None)
    history = record.get("history")
    if value is None and (misread := next((name for name in CONVERSATION_FIELDS[:2] if record.get(name)), None)):
        return read_conversation(record[misread], misread)
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
