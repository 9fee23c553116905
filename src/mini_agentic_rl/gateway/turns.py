"""Plain messages reshaped into turns that a chat template accepts. Pure functions; nothing here renders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .tool_calls import format_call, format_result


def ordinary_turn(message: Mapping[str, Any], tool_role: bool) -> dict[str, Any]:
    """A plain message as a turn of nothing but role and text; `result` marks a tool's result.

    Args:
        message: the plain message.
        tool_role: whether the template has a role for tool results; they are user turns otherwise.
    """
    role, content = message["role"], message["content"]
    if role == "assistant":
        return {"role": role, "content": assistant_text(message)}
    if role == "tool":
        return {"role": "tool" if tool_role else "user", "content": format_result(content), "result": True}
    return {"role": role, "content": content}


def assistant_text(message: Mapping[str, Any]) -> str:
    """Content and calls of a plain assistant message, as one text."""
    calls = [
        format_call(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())
    ]
    return "\n".join([message["content"], *calls] if message["content"] else calls)


def keeps(turn_text: str, message: Mapping[str, Any]) -> bool:
    """Whether a rendered assistant turn still says all that was said; templates may drop earlier thinking."""
    squashed = _squash(turn_text)
    names = [call["function"]["name"] for call in message.get("tool_calls", ())]
    return all(_squash(text) in squashed for text in (message["content"], *names))


def _squash(text: str) -> str:
    return re.sub(r"\s+", "", text)


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
