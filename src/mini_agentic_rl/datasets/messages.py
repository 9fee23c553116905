"""Conversations as OpenAI messages, read from the shapes that data sets use.

Read are OpenAI messages (also with `function_call`), ShareGPT turns (`from`, `value`), Anthropic messages of content
blocks, lists of [question, answer] pairs, transcripts of "\\n\\nHuman: …\\n\\nAssistant: …", and the marks of trainers
that say whether a message is trained.

A message that was read has `role` and `content`, and where they apply `reasoning_content`, `name`, `tool_calls`
(arguments as JSON text), `tool_call_id` and `train`. `train` is only ever False: the message is read, and not trained.
Texts are not changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from ..chat_messages import THOUGHT_FIELDS, calls_of, part_text, thought_of
from ..rewards import message_text
from .records import fields_of

Message: TypeAlias = dict[str, Any]

TRAIN_FIELDS: Final = (
    *("train", "training", "trainable", "train_on_turn", "learn"),
    *("loss", "loss_mask", "loss_weight", "loss_scale", "weight"),
)
"""Fields of a message or a row that say whether it is trained: true or false, 1 or 0."""
UNTRAINED_FIELDS: Final = ("masked", "mask", "ignore", "ignore_loss", "skip_loss")
"""Fields that say the opposite."""
MEDIA_FIELDS: Final = ("images", "videos", "audios", "audio")
_MEDIA: Final = frozenset(MEDIA_FIELDS)
_TOKEN_FIELDS: Final = ("train_detail", "training_detail")
_MARKS: Final = frozenset((*TRAIN_FIELDS, *UNTRAINED_FIELDS, *_TOKEN_FIELDS))
_NOTED: Final = _MARKS | {*MEDIA_FIELDS, *THOUGHT_FIELDS, "function_call", "refusal"}
"""Fields that most messages lack."""

_CALL_ROLE: Final = "function_call"
_ROLES: Final = {
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
    "function": "tool",
    "ipython": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "tool_result": "tool",
    "function_call": _CALL_ROLE,
    "tool_call": _CALL_ROLE,
    "tool_calls": _CALL_ROLE,
}
_ARGUMENTS: Final = ("arguments", "parameters", "input", "args")
_TRUE: Final = ("true", "yes")
_FALSE: Final = ("false", "no")


class ShapeError(ValueError):
    """A record without a known shape. `reason` is the same text for all records with this fault."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def is_turn(value: Any) -> bool:
    """Return True if a value is an object with a known role and a content or tool calls."""
    return isinstance(value, Mapping) and _role(value) is not None and not _CONTENT_FIELDS.isdisjoint(value)


_CONTENT_FIELDS: Final = frozenset(("content", "value", "tool_calls", "function_call"))


def is_answer(item: Mapping[str, Any]) -> bool:
    """Return True if an item is a turn of the assistant."""
    return _role(item) in ("assistant", _CALL_ROLE)


def read_flag(value: Any) -> bool | None:
    """Return the truth value of true or false, 1 or 0, or the text of one of these; None for anything else."""
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        try:
            value = float(text)
        except ValueError:
            return None
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def read_turn(item: Mapping[str, Any], field: str, calls: int) -> list[Message]:
    """Return the messages of an item: one, or several where its content blocks hold results of tools.

    Args:
        item: a message or turn of a data set.
        field: the name of the conversation in errors.
        calls: number of tool calls before it.

    Raises:
        ShapeError: an unknown role, a content block of another type than text, an empty message, or a mark for training
            that cannot be followed.
    """
    role = _role(item)
    if role is None:
        raise ShapeError(f"{field} has an unknown role", repr(item.get("role") or item.get("from"))[:60])
    content = item["value"] if item.get("content") is None and "value" in item else item.get("content")
    message: Message = {"role": role, "content": content}
    if item.get("name") is not None:
        message["name"] = item["name"]
    if item.get("tool_call_id") is not None:
        message["tool_call_id"] = item["tool_call_id"]
    thought: str | None = None
    tool_calls: Any = item.get("tool_calls")
    results: list[Message] = []
    if role == _CALL_ROLE:
        message |= {"role": "assistant", "content": None}
        try:
            call = json.loads(content) if isinstance(content, str) else content
        except (ValueError, RecursionError):
            raise ShapeError(f"{field} has a tool call that is not valid JSON") from None
        tool_calls = call if isinstance(call, list) else [call]
    elif content is not None and not isinstance(content, str):
        message["content"], thought, block_calls, results = _blocks(content, role, field)
        tool_calls = block_calls or tool_calls
    if not _NOTED.isdisjoint(item):
        refuse_media(item, field)
        for name in THOUGHT_FIELDS:
            if item.get(name) and not isinstance(item[name], str):
                raise ShapeError(f"{field} has a {name} that is no text", type(item[name]).__name__)
        thought = thought_of(item) or thought
        tool_calls = tool_calls or calls_of(item)
        if message["content"] is None and isinstance(item.get("refusal"), str):
            message["content"] = item["refusal"]
        is_trained = _marked(item, field)
        if is_trained and message["role"] != "assistant":
            name = next(name for name in (*TRAIN_FIELDS, *UNTRAINED_FIELDS) if item.get(name) is not None)
            raise ShapeError(f"{field} wants a message of the role {message['role']} trained", f"{name} has to be 0")
        if is_trained is False and message["role"] == "assistant":
            message["train"] = False
    if message["role"] == "assistant":
        if thought is not None:
            message["reasoning_content"] = thought
        if tool_calls:
            if not isinstance(tool_calls, list):
                raise ShapeError(f"{field} has tool calls that are no list")
            message["tool_calls"] = [_call(call, field, calls + at) for at, call in enumerate(tool_calls, 1)]
        elif not (message["content"] or "").strip():
            raise ShapeError(f"{field} has an empty answer")
    elif message["content"] is None and not results:
        raise ShapeError(f"{field} has a message without content")
    return [*results, message] if message["content"] is not None or not results else results


def read_text(content: Any, field: str) -> str | None:
    """Return the text of a content.

    Raises:
        ShapeError: it holds anything but text.
    """
    return content if content is None or isinstance(content, str) else _blocks(content, "system", field)[0]


def _role(item: Mapping[str, Any]) -> str | None:
    name = item.get("role") or item.get("from")
    if not isinstance(name, str):
        return None
    return _ROLES.get(name) or _ROLES.get(name.strip().lower().replace("-", "_").replace(" ", "_"))


def _blocks(content: Any, role: str, field: str) -> tuple[str | None, str | None, list[Any], list[Message]]:
    """Return text, thought, tool calls and results of tools in a list of content blocks."""
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise ShapeError(f"{field} has content that is no text", type(content).__name__)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Any] = []
    results: list[Message] = []
    for part in content:
        kind = part.get("type") or ("text" if "text" in part else next(iter(part), "text"))
        text = part_text({**part, "type": kind})
        if text is not None:
            texts.append(text)
        elif kind in ("thinking", "reasoning") and role == "assistant":
            thought = next((part[name] for name in (*THOUGHT_FIELDS, "text") if part.get(name)), "")
            thoughts.append(read_text(thought, field) or "")
        elif kind == "tool_use" and role == "assistant":
            calls.append(part)
        elif kind == "tool_result" and role in ("user", "tool"):
            result = read_text(part.get("content"), field) or ""
            if part.get("is_error") is True:
                result = f"error: {result}"
            call_id = {"tool_call_id": part["tool_use_id"]} if part.get("tool_use_id") else {}
            results.append({"role": "tool", "content": result, **call_id})
        else:
            raise ShapeError(f"{field} has a {kind} block in a message of the role {role}", "it cannot be trained on")
    joined = "".join(texts) if texts or not (calls or results) else None
    return joined, "\n".join(thoughts) if thoughts else None, calls, results


def is_marked_trained(record: Mapping[str, Any]) -> bool | None:
    """Return what the marks of a whole record say, as `weight` 1 or 0; None without any.

    Raises:
        ShapeError: a mark is neither 0 nor 1, or two contradict each other.
    """
    return None if _MARKS.isdisjoint(record) else _marked(record, "the row")


def _marked(item: Mapping[str, Any], where: str) -> bool | None:
    for name in _TOKEN_FIELDS:
        if item.get(name):
            raise ShapeError(f"{where} has a {name}", "whole messages are trained or not, not parts of them")
    marks: dict[str, bool] = {}
    for name in (*TRAIN_FIELDS, *UNTRAINED_FIELDS):
        if item.get(name) is None:
            continue
        flag = read_flag(item[name])
        if flag is None:
            raise ShapeError(f"{where} has a {name} that is neither 0 nor 1", repr(item[name])[:60])
        marks[name] = flag is not (name in UNTRAINED_FIELDS)
    if len(set(marks.values())) > 1:
        raise ShapeError(f"{where} has marks that contradict each other", ", ".join(marks))
    return next(iter(marks.values()), None)


def refuse_media(item: Mapping[str, Any], field: str) -> None:
    """Refuse a message or a record with a field of pictures or sound.

    Raises:
        ShapeError: it has any.
    """
    if not _MEDIA.isdisjoint(item) and (name := next((name for name in MEDIA_FIELDS if item.get(name)), None)):
        raise ShapeError(f"{field} has {name}", "only text is trained on")


def _call(call: Any, field: str, number: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ShapeError(f"{field} has a tool call without a name")
    arguments: Any = next((function[name] for name in _ARGUMENTS if function.get(name) is not None), {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    identity = call.get("id") or f"call_{number}"
    return {"id": identity, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


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
    """Return True if a value looks like a list of messages or of ShareGPT turns, valid or not."""
    # `dict` first: a check against an abstract class takes several times as long
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict | Mapping) and ("role" in item or "from" in item) for item in value)
    )


def read_conversation(value: Any, field: str = "messages") -> list[Message]:
    """Return OpenAI messages, read from messages or ShareGPT turns. `field` is the name of the value in errors.

    Turns of the role `function_call` become tool calls of the answer before them. A tool result without an id gets that
    of the call that it answers, matched by name or else by position. An answer that is marked as not to be trained has
    `train` False.

    Raises:
        ShapeError: no list of messages, or one of them cannot be read.
    """
    if isinstance(value, Mapping):
        value = [value]
    if not is_conversation(value):
        if isinstance(value, str):
            detail = "it is text, and not the JSON text of messages"
        else:
            detail = "it is empty" if value == [] else f"it is of the type {type(value).__name__}"
        raise ShapeError(f"{field} is no list of messages", detail)
    messages: list[Message] = []
    unanswered: list[Mapping[str, Any]] = []
    count = 0
    for item in value:
        for message in read_turn(item, field, count):
            if message["role"] == "tool" and unanswered:
                if "tool_call_id" not in message:
                    same_name = (call for call in unanswered if call["function"]["name"] == message.get("name"))
                    message["tool_call_id"] = next(same_name, unanswered[0])["id"]
                unanswered = [call for call in unanswered if call["id"] != message["tool_call_id"]]
            elif calls := message.get("tool_calls"):
                count += len(calls)
                last = messages[-1] if messages else {}
                same_mark = last.get("role") == "assistant" and last.get("train") == message.get("train")
                if same_mark and _role(item) == _CALL_ROLE:
                    last["tool_calls"] = [*last.get("tool_calls", ()), *calls]
                    unanswered += calls
                    continue
                unanswered = list(calls)
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
        is_pair = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        if not is_pair or not all(isinstance(text, str) for text in pair):
            raise ShapeError(f"{field} is no list of [question, answer] pairs")
        messages += [user(pair[0]), assistant(pair[1])]
    return messages


def read_transcript(value: Any) -> list[Message] | None:
    """Return the turns of a text of "Human: …" and "Assistant: …", those of one speaker in a row joined; None for
    anything else."""
    if not (isinstance(value, str) and value.lstrip().startswith("Human:") and "\n\nAssistant:" in value):
        return None
    text = value.strip("\n")
    marks = list(_SPEAKER.finditer(text))
    messages: list[Message] = []
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        content = text[mark.end() : following.start() if following else len(text)].strip()
        role = "user" if mark[1] == "Human" else "assistant"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{content}"
        else:
            messages.append({"role": role, "content": content})
    return messages


def without_marks(messages: Sequence[Message]) -> list[Message]:
    """Return the messages of a prompt without their training marks."""
    return [
        {name: value for name, value in message.items() if name != "train"} if "train" in message else message
        for message in messages
    ]


def refuse_untrained_row(record: Mapping[str, Any]) -> None:
    """Refuse a record that is marked as not to be trained, as `weight` 0.

    Raises:
        ShapeError: it is, or a mark cannot be followed.
    """
    if is_marked_trained(record) is False:
        raise ShapeError("the row is marked as not to be trained")


def refuse_untrained(messages: Sequence[Message], field: str) -> None:
    """Refuse an answer with a message that is marked as not to be trained.

    Raises:
        ShapeError: it has one.
    """
    for message in messages:
        if "train" in message:
            raise ShapeError(f"{field} is marked as not to be trained")


def question_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the first user message; without one, all texts."""
    first = next((message for message in messages if message.get("role") == "user"), None)
    return message_text(first) if first is not None else "\n".join(map(message_text, messages))


def tools_of(record: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return `{"tools": […]}` of a record, from `tools`, the older `functions`, or the `input` of OpenAI's preferences;
    empty without any.

    Raises:
        ShapeError: as `read_tools`.
    """
    value = record.get("tools")
    if not value and isinstance(given := record.get("input"), dict):
        value = given.get("tools")
    functions = record.get("functions")
    if not value and isinstance(functions, list) and all(isinstance(x, Mapping) and "name" in x for x in functions):
        value = functions
    tools = read_tools(value) if value else None
    return {} if tools is None else {"tools": tools}


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Return tools as OpenAI writes them, from a list of OpenAI's or Anthropic's, or its JSON text; None without any.

    Raises:
        ShapeError: neither of these.
    """
    value = _from_json(value)
    if not value:
        return None
    tools = [_from_json(tool) for tool in value] if isinstance(value, list) else [value]
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ShapeError("tools are no list of objects")
    renamed = {"input_schema": "parameters"}  # of Anthropic
    return [
        dict(tool)
        if "function" in tool
        else {"type": "function", "function": {renamed.get(name, name): value for name, value in tool.items()}}
        for tool in tools
    ]


def _from_json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) and value.strip() else value
    except (ValueError, RecursionError):
        raise ShapeError("tools are not valid JSON") from None


PROMPT_FIELDS: tuple[str, ...] = ("prompt", "question", "query", "instruction", "problem", "input", "post")
"""Fields with the question as text, by priority; Alpaca's `input` is appended to its `instruction`."""
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
    """Return the messages, with the record's system prompt before them if they have none."""
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
    if (turns := read_transcript(value)) is not None:
        return turns if message_text(turns[-1]) else turns[:-1]
    more = record.get("input")
    if isinstance(more, str) and more.strip() and value == record.get("instruction"):
        value = f"{value}\n{more}"
    return [*read_history(history), user(value)]
