"""Preferences out of the shapes in which they are published: a prompt, the better answer, the worse answer.

The shape of a record is found by its fields (`SHAPES`). Answers may be text, messages, ShareGPT turns or transcripts;
where both are whole conversations, what they begin with in common is the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..rewards import message_text
from .json_text import with_json_read
from .judgements import read_judged, read_scored
from .messages import (
    CONVERSATION_FIELDS,
    PROMPT_FIELDS,
    assistant,
    is_conversation,
    is_transcript,
    read_conversation,
    read_prompt,
    read_transcript,
    refuse_untrained,
    tools_of,
    with_system,
    without_marks,
)
from .records import fields_of
from .turns import Message, ShapeError, refuse_media

SHAPES: dict[str, str] = {
    "openai": "input, preferred_output, non_preferred_output",
    "pair": "chosen and rejected (or another pair of `PAIR_FIELDS`), with a prompt or as whole conversations",
    "swift": "query or messages with its response, and rejected_response or rejected_messages",
    "ranked_outputs": "instruction with a list of two outputs, the better one first",
    "verdict": "two answers, and which of them is better",
    "scored": "a list of answers, each with a score; the best against the worst",
}
"""The shapes, with the fields that tell them apart."""

PAIR_FIELDS: tuple[tuple[str, str], ...] = (
    ("chosen", "rejected"),
    ("chosen_response", "rejected_response"),
    ("response_chosen", "response_rejected"),
    ("chosen_answer", "rejected_answer"),
    ("accepted", "rejected"),
    ("preferred", "dispreferred"),
    ("response_j", "response_k"),
    ("win", "lose"),
    ("positive", "negative"),
)
"""Fields of the better and of the worse answer."""

NO_PREFERENCE = "no known shape of a preference"
SAME = "chosen equals rejected"


@dataclass(frozen=True)
class Preference:
    """Two answers to one prompt."""

    prompt: list[Message]
    chosen: list[Message]
    """The better answer: messages of the assistant (and of tools), the last one the assistant's."""
    rejected: list[Message]
    shape: str = "pair"
    """Key in `SHAPES` of the shape it was read from."""
    tools: list[dict[str, Any]] | None = None
    """The tools that the prompt offers."""

    def row(self) -> dict[str, Any]:
        """As a row of a data set."""
        row: dict[str, Any] = {"prompt": self.prompt, "chosen": self.chosen, "rejected": self.rejected}
        return row if self.tools is None else {**row, "tools": self.tools}


@dataclass(frozen=True)
class PreferenceFields:
    """Names of a record's fields, where they are not to be guessed."""

    prompt: str | None = None
    chosen: str | None = None
    rejected: str | None = None


def read_preference(record: Mapping[str, Any], fields: PreferenceFields | None = None) -> Preference:
    """Return the preference that a record states.

    Raises:
        ShapeError: no known shape, an empty or equal answer, a tie, or a malformed conversation.
    """
    if fields is not None:
        record = _renamed(record, fields)
    record = with_json_read(record)
    refuse_media(record, "the record")
    if "preferred_output" in record and "non_preferred_output" in record:
        return _between("openai", record, record["preferred_output"], record["non_preferred_output"])
    for better, worse in PAIR_FIELDS:
        if better in record and worse in record:
            return _between("pair", record, record[better], record[worse])
    if "rejected_response" in record or "rejected_messages" in record:
        return _swift(record)
    outputs = record.get("output")
    if isinstance(outputs, list) and len(outputs) == 2 and all(isinstance(output, str) for output in outputs):
        return _between("ranked_outputs", record, *outputs)
    if (pair := read_judged(record)) is not None:
        return _between("verdict", record, *pair)
    if (pair := read_scored(record)) is not None:
        return _between("scored", record, *pair)
    raise ShapeError(NO_PREFERENCE, fields_of(record))


def _renamed(record: Mapping[str, Any], fields: PreferenceFields) -> dict[str, Any]:
    renamed = dict(record)
    if fields.prompt is not None:
        for name in (*PROMPT_FIELDS, *CONVERSATION_FIELDS, "history"):
            renamed.pop(name, None)
    for name, given in (("prompt", fields.prompt), ("chosen", fields.chosen), ("rejected", fields.rejected)):
        if given is not None:
            if given not in record:
                raise ShapeError(f"no field {given!r}", fields_of(record))
            renamed[name] = record[given]
    return renamed


def _swift(record: Mapping[str, Any]) -> Preference:
    """ms-swift: the better answer is the response, or the last message."""
    rejected = record.get("rejected_messages") or record.get("rejected_response")
    if "response" in record:
        return _between("swift", record, record["response"], rejected)
    messages = read_conversation(record.get("messages"))
    if messages[-1]["role"] != "assistant":
        raise ShapeError("messages do not end with an answer")
    if is_conversation(rejected):
        return _between("swift", {"tools": tools_of(record)}, record["messages"], rejected)
    start = len(messages)
    while start and messages[start - 1]["role"] in ("assistant", "tool"):
        start -= 1
    return _between("swift", {**record, "messages": messages[:start]}, messages[start:], rejected)


def _between(shape: str, record: Mapping[str, Any], better: Any, worse: Any) -> Preference:
    chosen, rejected = _answer(better, "chosen"), _answer(worse, "rejected")
    if _is_whole(chosen) and _is_whole(rejected):
        shared = _shared(chosen, rejected)
        prompt = without_marks(with_system(record, chosen[:shared]))
        chosen, rejected = chosen[shared:], rejected[shared:]
        if not chosen and not rejected:
            raise ShapeError(SAME)
        if not any(message_text(message).strip() for message in prompt if message["role"] in ("user", "tool")):
            raise ShapeError("chosen and rejected have no prompt in common")
    elif _is_whole(chosen) or _is_whole(rejected):
        raise ShapeError("only one of chosen and rejected holds its prompt")
    else:
        prompt = without_marks(read_prompt(record))
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if not answer or answer[-1]["role"] != "assistant":
            raise ShapeError(f"{name} does not end with an answer")
        if _is_whole(answer):
            raise ShapeError("the conversations part before the last answer")
        refuse_untrained(answer, name)
    if prompt[-1]["role"] == "assistant":
        raise ShapeError("the prompt ends with an answer")
    if _stripped(chosen) == _stripped(rejected):
        raise ShapeError(SAME)
    return Preference(prompt, chosen, rejected, shape, tools_of(record))


def _answer(value: Any, name: str) -> list[Message]:
    """Return an answer as messages, with the conversation before it if the record has it there."""
    if isinstance(value, Mapping) and not ("role" in value or "from" in value):
        text = next((value[key] for key in ("response", "text", "content", "full_text") if key in value), None)
        value = text if text is not None else value
    if is_transcript(value):
        messages = read_transcript(value)
        if not message_text(messages[-1]).strip():
            raise ShapeError(f"{name} is empty")
        return messages
    if isinstance(value, str) or value is None or value == []:
        if not value or not value.strip():
            raise ShapeError(f"{name} is empty")
        return [assistant(value)]
    if isinstance(value, float | int):
        raise ShapeError(f"{name} is neither text nor messages", "NaN" if math.isnan(value) else type(value).__name__)
    return read_conversation(value, name)


def _is_whole(messages: list[Message]) -> bool:
    return any(message["role"] in ("user", "system", "developer") for message in messages)


def _shared(left: list[Message], right: list[Message]) -> int:
    """Return the number of messages that both begin with."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def _stripped(messages: list[Message]) -> list[Message]:
    return [{**message, "content": message_text(message).strip()} for message in messages]
