"""Fields of a record that hold JSON as text, as CSV files and some Parquet and JSON Lines files have them.

A text is read as JSON where it is the JSON text of messages, or where its field always holds a list. Any other text
stays text, however much it looks like JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from .judgements import LIST_FIELDS, RANK_LIST_FIELDS, SCORE_LIST_FIELDS
from .messages import CONVERSATION_FIELDS, PROMPT_FIELDS
from .turns import is_answer, is_turn

TRUTH_FIELDS: tuple[str, ...] = ("ground_truth", "answer", "final_answer", "target", "solution")
"""Fields with the right answer, the first that a record has; verl's `reward_model.ground_truth` comes before them."""

_LISTS: Final = frozenset(("tools", "functions", "history", *LIST_FIELDS, *SCORE_LIST_FIELDS, *RANK_LIST_FIELDS))
_OBJECTS: Final = frozenset(("reward_model",))
_PROMPTS: Final = frozenset((*CONVERSATION_FIELDS, *PROMPT_FIELDS))
_FIRST: Final = frozenset("[{ \t\r\n")


def with_json_read(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record with its JSON texts read; itself where it has none."""
    found: dict[str, Any] = {}
    for name, given in record.items():
        if isinstance(given, str):
            if given[:1] not in _FIRST:
                continue
            value = _parsed(given)
            meant = _is_list_or_object(name, value) or _is_conversation(name, value)
        elif isinstance(given, list) and given and isinstance(given[0], str) and given[0][:1] == "{":
            value = [_parsed(item) if isinstance(item, str) else item for item in given]
            meant = _is_conversation(name, value)
        else:
            continue
        if meant and name not in TRUTH_FIELDS:
            found[name] = value
    return {**record, **found} if found else record


def _is_list_or_object(name: str, value: Any) -> bool:
    """Return True if a value is what its field always holds."""
    if isinstance(value, list):
        return name in _LISTS
    return isinstance(value, dict) and (name in _OBJECTS or _is_input(value))


def _is_conversation(name: str, value: Any) -> bool:
    """Return True if a value is messages: those of a prompt, or any that end with an answer."""
    turns = value if isinstance(value, list) else [value]
    return bool(turns) and all(map(is_turn, turns)) and (name in _PROMPTS or is_answer(turns[-1]))


def _is_input(value: Mapping[str, Any]) -> bool:
    """Return True for the `input` of OpenAI's preferences."""
    messages = value.get("messages")
    return isinstance(messages, list) and bool(messages) and all(map(is_turn, messages))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
