"""Chat messages of all clients in one plain form, and plain messages as the turns of a chat template.

A plain message is a dict with `role`, `content` (always text), and optionally `tool_calls` (arguments parsed to a
dict), `reasoning_content` (text), `tool_call_id` and `name`. The functions are pure. A message that needs no change is
returned itself, so that a long conversation is not copied; nobody may modify it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, TypeAlias

from ...chat_messages import calls_of, part_text, thought_of
from ...http import BadRequestError
from ..tool_formats import ToolFormat, parse_arguments
from .decoding import ThinkTags

Message: TypeAlias = Mapping[str, Any]

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_SIMPLE = {"role", "content", "tool_call_id", "name"}
"""Fields of a message that need no conversion."""


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return `messages` in plain form, with the results of an answer's calls in the order of the calls.

    Templates that show no call ids identify results by their order.

    Raises:
        BadRequestError: an unknown role, a content part that is not text, or a malformed tool call; `param` names it.
    """
    plain = [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]
    ordered = list(plain)
    answers = [index for index, message in enumerate(plain) if message["role"] == "assistant"]
    # Sort the results between two answers. A result belongs to the call with its id, or to the only call with its name;
    # other results and messages keep their positions.
    for answer, end in pairwise([*answers, len(plain)]):
        calls = plain[answer].get("tool_calls", ())
        if len(calls) < 2:
            continue
        names = [call["function"]["name"] for call in calls]
        places = {("id", str(call["id"])): place for place, call in enumerate(calls) if call["id"]}
        counts = Counter(names)
        places |= {("name", name): place for place, name in enumerate(names) if counts[name] == 1}
        results = []
        for index in range(answer + 1, end):
            result = plain[index]
            keys = (("id", str(result.get("tool_call_id"))), ("name", str(result.get("name"))))
            place = next((places[key] for key in keys if key in places), None)
            if result["role"] == "tool" and place is not None:
                results.append((place, index))
        for (_, given), (_, slot) in zip(sorted(results), results, strict=True):
            ordered[slot] = plain[given]
    return ordered


def _plain(message: Message, where: str) -> dict[str, Any]:
    given = message.get("role")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        known = ", ".join(_ROLES)
        raise BadRequestError(f"unknown role {given!r}; use one of {known}", param=f"{where}.role")
    content = message.get("content")
    simple = role == given and isinstance(content, str) and message.keys() <= _SIMPLE
    if simple and isinstance(message, dict) and None not in message.values():
        return message
    plain: dict[str, Any] = {"role": role, "content": _text(content, f"{where}.content")}
    calls = calls_of(message)
    if role == "assistant" and calls:
        if not isinstance(calls, list | tuple):
            raise BadRequestError("tool_calls must be a list", param=f"{where}.tool_calls")
        plain["tool_calls"] = [_tool_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    thought = thought_of(message)
    if role == "assistant" and thought is not None:
        plain["reasoning_content"] = thought
    for key in ("tool_call_id", "name"):
        if message.get(key) is not None:
            plain[key] = message[key]
    return plain


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise BadRequestError("content must be text or a list of parts", param=where)
    texts = []
    for index, part in enumerate(content):
        value = part_text(part)
        if value is None:
            kind = part.get("type") if isinstance(part, Mapping) else None
            raise BadRequestError(f"this model reads text only, not {kind!r}", param=f"{where}[{index}]")
        texts.append(value)
    return "".join(texts)


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRequestError("a tool call needs function.name", param=where)
    return {
        "id": call.get("id") or "",
        "type": "function",
        "function": {"name": function["name"], "arguments": parse_arguments(function.get("arguments"))},
    }


_SHORT_ID = 9


def ordinary_turn(message: Mapping[str, Any], tool_format: ToolFormat, tool_role: bool) -> dict[str, Any]:
    """Return a plain message as a turn of role and text; tool results have `result`.

    Args:
        message: the plain message.
        tool_format: writes calls and results.
        tool_role: True if the template has a role for tool results; otherwise they are user turns.
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
    """Return content and calls of a plain assistant message as one text, separated by `call_lead`."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    parts = [message["content"], tool_format.format_calls(calls) if calls else ""]
    return call_lead.join(part for part in parts if part)


def assistant_message(text: str, reasoning: str | None, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return an assistant message of chat completions; its content is null if it consists of calls only."""
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def with_short_ids(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return the turn with call ids of nine letters and digits."""
    changed = dict(turn)
    if "tool_calls" in turn:
        changed["tool_calls"] = [{**call, "id": _short_id(str(call["id"]))} for call in turn["tool_calls"]]
    if "tool_call_id" in turn:
        changed["tool_call_id"] = _short_id(str(turn["tool_call_id"]))
    return changed


def _short_id(id_: str) -> str:
    if len(id_) == _SHORT_ID and id_.isascii() and id_.isalnum():
        return id_
    return hashlib.blake2b(id_.encode("utf-8", "replace")).hexdigest()[:_SHORT_ID]


def keeps(turn_text: str, message: Mapping[str, Any]) -> bool:
    """Return True if a rendered assistant turn contains the whole message; templates may drop earlier thinking."""
    text = squashed(turn_text)
    names = [call["function"]["name"] for call in message.get("tool_calls", ())]
    parts = (message["content"], message.get("reasoning_content") or "", *names)
    return all(squashed(part) in text for part in parts)


def with_system_text(turns: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Add `text` to the system turn, which is created if there is none."""
    if turns[0]["role"] != "system":
        return [{"role": "system", "content": text}, *turns]
    content = turns[0]["content"]
    return [{**turns[0], "content": f"{content}\n\n{text}" if content else text}, *turns[1:]]


def system_text_folded(turns: list[dict[str, Any]], first: bool) -> list[dict[str, Any]]:
    """Move system text to the start of the next user turn, or into a user turn before the next answer.

    Args:
        turns: the turns.
        first: True if the template has a system turn at the beginning, which takes all leading system text.
    """
    lead = [turn["content"] for turn in takewhile(lambda turn: turn["role"] == "system", turns)] if first else []
    result = [{"role": "system", "content": "\n\n".join(filter(None, lead))}] if lead else []
    held: list[str] = []
    for turn in turns[len(lead) :]:
        if turn["role"] == "system":
            held.append(turn["content"])
            continue
        if held and turn["role"] == "user" and not turn.get("result"):
            turn, held = {**turn, "content": "\n\n".join([*held, turn["content"]])}, []
        elif held and turn["role"] == "assistant":
            result.append({"role": "user", "content": "\n\n".join(held)})
            held = []
        result.append(turn)
    return [*result, {"role": "user", "content": "\n\n".join(held)}] if held else result


def merged(turns: list[dict[str, Any]], alternating: bool, user_after_result: bool) -> list[dict[str, Any]]:
    """Join adjacent turns as the template requires.

    Args:
        turns: the turns. Tool results with `result` are always joined.
        alternating: True if user and assistant must alternate.
        user_after_result: True if a user turn may follow a result; otherwise it is joined to the result.
    """
    result: list[dict[str, Any]] = []
    contents: list[list[str]] = []
    for turn in turns:
        last = result[-1] if result else {}
        role, before = turn["role"], last.get("role")
        both_results = bool(last.get("result")) and bool(turn.get("result"))
        alike = role == before and (both_results or (alternating and role in ("user", "assistant")))
        if alike or (role == "user" and before == "tool" and not user_after_result):
            contents[-1].append(turn["content"])
            last |= {name: [*last.get(name, ()), *turn[name]] for name in ("tool_calls",) if name in turn}
            thoughts = [part["reasoning_content"] for part in (last, turn) if part.get("reasoning_content")]
            last |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
        else:
            result.append(dict(turn))
            contents.append([turn["content"]])
    return [
        {**{key: value for key, value in turn.items() if key != "result"}, "content": "\n".join(filter(None, texts))}
        for turn, texts in zip(result, contents, strict=True)
    ]


def separated(message: dict[str, Any], tags: ThinkTags, begun: bool) -> dict[str, Any]:
    """Return a plain message with the thought at the start of its content, if any, as its `reasoning_content`.

    Args:
        message: the plain message.
        tags: the think tags.
        begun: True if the generation prompt opens the thought, so that answers have only the closing tag.
    """
    content = message["content"]
    if message["role"] != "assistant" or tags.close not in content or message.get("reasoning_content"):
        return message
    opened = content.lstrip().startswith(tags.open)
    if not opened and not begun:
        return message
    thought, _, rest = content.partition(tags.close)
    thought = thought.lstrip().removeprefix(tags.open) if opened else thought
    return {**message, "content": rest.lstrip(), "reasoning_content": thought.strip()}


def without_thought(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message without its `reasoning_content`."""
    if "reasoning_content" not in message:
        return message
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def squashed(text: str) -> str:
    """Return the text without white space."""
    return re.sub(r"\s+", "", text)
