"""Plain messages reshaped into turns that a chat template accepts. Pure functions; nothing here renders."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ..tool_formats import ToolFormat
from .template import Template, squashed
from .thinking import without_thought

_SHORT = 9


def ordinary_turn(message: Mapping[str, Any], tool_format: ToolFormat, tool_role: bool) -> dict[str, Any]:
    """A plain message as a turn of nothing but role and text; `result` marks a tool's result.

    Args:
        message: the plain message.
        tool_format: how calls and results are written.
        tool_role: whether the template has a role for tool results; they are user turns otherwise.
    """
    role, content = message["role"], message["content"]
    if role == "assistant":
        thought = message.get("reasoning_content")
        text = assistant_text(message, tool_format)
        return {"role": role, "content": text, **({"reasoning_content": thought} if thought else {})}
    if role == "tool":
        return {"role": "tool" if tool_role else "user", "content": tool_format.format_result(content), "result": True}
    return {"role": role, "content": content}


def assistant_text(message: Mapping[str, Any], tool_format: ToolFormat, call_lead: str = "\n") -> str:
    """Content and calls of a plain assistant message, as one text, with `call_lead` between them."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    parts = [message["content"], tool_format.format_calls(calls) if calls else ""]
    return call_lead.join(part for part in parts if part)


def with_thought(turn: Mapping[str, Any], template: Template) -> dict[str, Any]:
    """The turn with its `reasoning_content`, if any, where the template takes it: as it is, or in the content."""
    thought = turn.get("reasoning_content")
    if thought and template.thought_field:
        return dict(turn)
    plain = without_thought(turn)
    if not thought or template.tags is None:
        return plain
    opening = "" if template.thought_closed_only else f"{template.tags.open}\n"
    return {**plain, "content": f"{opening}{thought}\n{template.tags.close}\n\n{plain['content']}"}


def with_short_ids(turn: Mapping[str, Any]) -> dict[str, Any]:
    """The turn with call ids of nine letters and digits; those that are such already stay."""
    changed = dict(turn)
    if "tool_calls" in turn:
        changed["tool_calls"] = [{**call, "id": _short_id(str(call["id"]))} for call in turn["tool_calls"]]
    if "tool_call_id" in turn:
        changed["tool_call_id"] = _short_id(str(turn["tool_call_id"]))
    return changed


def _short_id(id_: str) -> str:
    if len(id_) == _SHORT and id_.isascii() and id_.isalnum():
        return id_
    return hashlib.blake2b(id_.encode("utf-8", "replace")).hexdigest()[:_SHORT]


def keeps(turn_text: str, message: Mapping[str, Any]) -> bool:
    """Whether a rendered assistant turn still says all that was said; templates may drop earlier thinking."""
    text = squashed(turn_text)
    names = [call["function"]["name"] for call in message.get("tool_calls", ())]
    said = (message["content"], message.get("reasoning_content") or "", *names)
    return all(squashed(part) in text for part in said)


def with_system_text(turns: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """`text` added to the system turn, which is made when there is none."""
    if turns[0]["role"] != "system":
        return [{"role": "system", "content": text}, *turns]
    content = turns[0]["content"]
    return [{**turns[0], "content": f"{content}\n\n{text}" if content else text}, *turns[1:]]


def system_into_user(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """System text moved to the front of the user turn that follows it."""
    result: list[dict[str, Any]] = []
    held: list[str] = []
    for turn in turns:
        if turn["role"] == "system":
            held.append(turn["content"])
        elif held and turn["role"] == "user":
            result.append({**turn, "content": "\n\n".join([*held, turn["content"]])})
            held = []
        elif held:
            result += [{"role": "user", "content": "\n\n".join(held)}, turn]
            held = []
        else:
            result.append(turn)
    return [*result, {"role": "user", "content": "\n\n".join(held)}] if held else result


def merged(turns: list[dict[str, Any]], alternating: bool) -> list[dict[str, Any]]:
    """Tool results in a row become one turn; so do user turns in a row where the template wants them to alternate."""
    result: list[dict[str, Any]] = []
    for turn in turns:
        last = result[-1] if result else None
        both_results = last is not None and bool(last.get("result")) and bool(turn.get("result"))
        if (
            last is not None
            and last["role"] == turn["role"]
            and turn["role"] != "assistant"
            and (both_results or (alternating and turn["role"] == "user"))
        ):
            last["content"] = f"{last['content']}\n{turn['content']}"
        else:
            result.append(dict(turn))
    return [{key: value for key, value in turn.items() if key != "result"} for turn in result]
