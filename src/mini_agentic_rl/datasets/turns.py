"""One message of a record as OpenAI writes it, from the ways in which data sets write it.

Read here: OpenAI messages (also with `function_call`), ShareGPT turns (`from`, `value`), Anthropic messages of content
blocks, and the marks of trainers that say whether a message is trained. What comes out holds `role` and `content`, and
where they apply `reasoning_content`, `name`, `tool_calls` (arguments as JSON text), `tool_call_id` and `train`, which
is there only if it is False: the message is read, and not trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from ..chat_messages import THOUGHT_FIELDS, calls_of, part_text, thought_of

Message: TypeAlias = dict[str, Any]

TRAIN_FIELDS: Final = (
    *("train", "training", "trainable", "train_on_turn", "learn"),
    *("loss", "loss_mask", "loss_weight", "loss_scale", "weight"),
)
"""Fields of a message that say whether it is trained: true or false, 1 or 0."""
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
    """A record that is not what was asked for. `reason` says why in words that are the same for all such records."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def is_turn(value: Any) -> bool:
    """Return True if a value is an object with a known role and something said."""
    return isinstance(value, Mapping) and _role(value) is not None and not _SAID.isdisjoint(value)


_SAID: Final = frozenset(("content", "value", "tool_calls", "function_call"))


def is_answer(item: Mapping[str, Any]) -> bool:
    """Return True if an item is a turn of the assistant."""
    return _role(item) in ("assistant", _CALL_ROLE)


def is_call(item: Mapping[str, Any]) -> bool:
    """Return True if an item is a turn that is nothing but tool calls, which belong to the answer before it."""
    return _role(item) == _CALL_ROLE


def read_flag(value: Any) -> bool | None:
    """Return true or false, 1 or 0, or the text of one of these as a truth value; None for anything else."""
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
    """Return the messages that an item stands for: one, or several where its content blocks hold results of tools.

    Args:
        item: the message.
        field: the name that an error gives the conversation.
        calls: number of tool calls before it.

    Raises:
        ShapeError: an unknown role, a content block that is not trained on, a message that says nothing, or a mark for
            training that cannot be followed.
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
    made: Any = item.get("tool_calls")
    results: list[Message] = []
    if role == _CALL_ROLE:
        message |= {"role": "assistant", "content": None}
        made = _called(content, field)
    elif content is not None and not isinstance(content, str):
        message["content"], thought, used, results = _blocks(content, role, field)
        made = used or made
    if not _NOTED.isdisjoint(item):
        refuse_media(item, field)
        thought = _thought(item, field) or thought
        made = made or calls_of(item)
        if message["content"] is None and isinstance(item.get("refusal"), str):
            message["content"] = item["refusal"]
        if _is_trained(item, message["role"], field) is False and message["role"] == "assistant":
            message["train"] = False
    if message["role"] == "assistant":
        if thought is not None:
            message["reasoning_content"] = thought
        if made:
            message["tool_calls"] = read_calls(made, field, calls)
        elif not (message["content"] or "").strip():
            raise ShapeError(f"{field} has an empty answer")
    elif message["content"] is None and not results:
        raise ShapeError(f"{field} has a message without content")
    return [*results, message] if message["content"] is not None or not results else results


def read_calls(calls: Any, field: str, before: int) -> list[dict[str, Any]]:
    """Return tool calls as OpenAI writes them.

    Raises:
        ShapeError: they are no list, or one of them has no name.
    """
    if not isinstance(calls, list):
        raise ShapeError(f"{field} has tool calls that are no list")
    return [_call(call, field, before + at) for at, call in enumerate(calls, 1)]


def read_text(content: Any, field: str) -> str | None:
    """Return the text of a content that has nothing but text.

    Raises:
        ShapeError: it holds anything else.
    """
    return content if content is None or isinstance(content, str) else _blocks(content, "system", field)[0]


def _role(item: Mapping[str, Any]) -> str | None:
    said = item.get("role") or item.get("from")
    if not isinstance(said, str):
        return None
    return _ROLES.get(said) or _ROLES.get(said.strip().lower().replace("-", "_").replace(" ", "_"))


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
            results.append(_result(part, field))
        else:
            raise ShapeError(f"{field} has a {kind} block in a message of the role {role}", "it cannot be trained on")
    said = "".join(texts) if texts or not (calls or results) else None
    return said, "\n".join(thoughts) if thoughts else None, calls, results


def _result(block: Mapping[str, Any], field: str) -> Message:
    text = read_text(block.get("content"), field) or ""
    given = {"tool_call_id": block["tool_use_id"]} if block.get("tool_use_id") else {}
    return {"role": "tool", "content": f"error: {text}" if block.get("is_error") is True else text, **given}


def _thought(item: Mapping[str, Any], field: str) -> str | None:
    for name in THOUGHT_FIELDS:
        if item.get(name) and not isinstance(item[name], str):
            raise ShapeError(f"{field} has a {name} that is no text", type(item[name]).__name__)
    return thought_of(item)


def _is_trained(item: Mapping[str, Any], role: str, field: str) -> bool | None:
    """Return what the marks of a message say; None without any."""
    trained = _marked(item, field)
    if trained and role != "assistant":
        name = next(name for name in (*TRAIN_FIELDS, *UNTRAINED_FIELDS) if item.get(name) is not None)
        raise ShapeError(f"{field} wants a message of the role {role} trained", f"{name} has to be 0")
    return trained


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
    """Refuse a message or a record with pictures or sound in fields of their own.

    Raises:
        ShapeError: it has any.
    """
    if not _MEDIA.isdisjoint(item) and (name := next((name for name in MEDIA_FIELDS if item.get(name)), None)):
        raise ShapeError(f"{field} has {name}", "only text is trained on")


def _called(content: Any, field: str) -> list[Any]:
    """Return the calls in the JSON text of a `function_call` turn: one call, or a list of them."""
    try:
        found = json.loads(content) if isinstance(content, str) else content
    except (ValueError, RecursionError):
        raise ShapeError(f"{field} has a tool call that is not valid JSON") from None
    return found if isinstance(found, list) else [found]


def _call(call: Any, field: str, number: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ShapeError(f"{field} has a tool call without a name")
    arguments: Any = next((function[name] for name in _ARGUMENTS if function.get(name) is not None), {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    identity = call.get("id") or f"call_{number}"
    return {"id": identity, "type": "function", "function": {"name": function["name"], "arguments": arguments}}
