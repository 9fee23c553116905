"""Preferences, read from the shapes of published data sets: a prompt, a better answer and a worse one.

The fields of a record tell its shape (`SHAPES`). Answers may be text, messages, ShareGPT turns or transcripts; where
both are whole conversations, their common beginning is the prompt. Of two judged answers, or several scored ones, the
judgement tells which is better.

Fields may hold JSON as text, as in CSV files. A text is read as JSON if it is the JSON text of messages, or if its
field always holds a list. Any other text stays text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ..rewards import message_text
from .messages import (
    CONVERSATION_FIELDS,
    PROMPT_FIELDS,
    Message,
    ShapeError,
    assistant,
    is_answer,
    is_conversation,
    is_turn,
    read_conversation,
    read_flag,
    read_prompt,
    read_transcript,
    refuse_media,
    refuse_untrained,
    refuse_untrained_row,
    tools_of,
    with_system,
    without_marks,
)
from .records import fields_of

TWO_FIELDS: tuple[tuple[str, str], ...] = (
    ("response_a", "response_b"),
    ("response_0", "response_1"),
    ("response_1", "response_2"),
    ("response1", "response2"),
    ("answer_a", "answer_b"),
    ("answer_0", "answer_1"),
    ("answer_1", "answer_2"),
    ("output_1", "output_2"),
    ("completion_a", "completion_b"),
    ("conversation_a", "conversation_b"),
    ("human_ref_A", "human_ref_B"),
)
"""Fields of two judged answers."""
JUDGEMENT_FIELDS: tuple[str, ...] = (
    "better_response_id",
    "winner",
    "preferred",
    "preference",
    "choice",
    "label",
    "overall_preference",
)
LIST_FIELDS: tuple[str, ...] = ("completions", "responses", "answers", "candidates", "outputs", "generations")
"""Fields with a list of answers: texts, or objects of a text and a score."""
SCORE_FIELDS: tuple[str, ...] = (
    "fine-grained_score",
    "overall_score",
    "score",
    "rating",
    "reward",
    "pm_score",
    "overall_rating",
)
SCORE_LIST_FIELDS: tuple[str, ...] = ("scores", "ratings", "rewards", "overall_scores", "chosen_scores")
RANK_LIST_FIELDS: tuple[str, ...] = ("ranks", "ranking", "rank")
"""Fields with a list of ranks, 1 for the best answer."""

TIE = "tie"
_TEXT_FIELDS = ("response", "text", "content", "output", "answer", "completion", "messages")


def _read_scored(record: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return the best and the worst of a list of scored answers; None where the record has none."""
    answers = next((record[name] for name in LIST_FIELDS if isinstance(record.get(name), list)), None)
    if answers is None:
        return None
    scores = _scores(record, answers)
    if scores is None:
        return None
    scored: list[tuple[float, Any]] = []
    for score, answer in zip(scores, answers, strict=True):
        text = answer
        if isinstance(answer, Mapping):
            text = next((answer[name] for name in _TEXT_FIELDS if answer.get(name)), None)
        if score is not None and text:
            scored.append((score, text))
    if len(scored) < 2:
        raise ShapeError("fewer than two scored answers")
    best, worst = max(scored, key=lambda pair: pair[0]), min(scored, key=lambda pair: pair[0])
    if best[0] == worst[0]:
        raise ShapeError(TIE)
    return best[1], worst[1]


def _first_wins(record: Mapping[str, Any], first: str, second: str) -> bool | None:
    """Return True if the first answer is better; None without a judgement."""
    if first == "human_ref_A" and "labels" in record:  # SHP: 1 means A
        wins = read_flag(record["labels"])
        if wins is None:
            raise ShapeError("the judgement names neither answer", f"labels is {record['labels']!r}"[:60])
        return wins
    flags = [read_flag(record.get(name)) for name in ("winner_model_a", "winner_model_b")]  # Chatbot Arena
    if None not in flags:
        if flags[0] == flags[1]:
            raise ShapeError(TIE)
        return flags[0]
    left, right = first[-1].lower(), second[-1].lower()  # "a" of response_a, "1" of response1
    scores = [_number(record.get(f"score_{ending}")) for ending in (left, right)]
    if scores[0] is not None and scores[1] is not None:
        if scores[0] == scores[1]:
            raise ShapeError(TIE)
        return scores[0] > scores[1]
    name = next((name for name in JUDGEMENT_FIELDS if record.get(name) is not None), None)
    if name is None:
        return None
    if name == "overall_preference":  # HelpSteer: below 0 the first, above 0 the second
        value = _number(record[name])
        if value == 0:
            raise ShapeError(TIE)
        return None if value is None else value < 0
    number = _number(record[name])  # None of true and false
    judgement = str(record[name]).strip().lower()
    if number is not None and number.is_integer():
        judgement = str(int(number))
    elif isinstance(record[name], bool):
        judgement = str(int(record[name]))
    if "tie" in judgement or "both" in judgement or judgement in ("equal", "neither", "same"):
        raise ShapeError(TIE)
    for ending, field, wins in ((left, first.lower(), True), (right, second.lower(), False)):
        if judgement in (ending, field) or judgement.endswith(("_" + ending, " " + ending)):
            return wins
    raise ShapeError("the judgement names neither answer", f"{name} is {judgement[:40]!r}")


def _scores(record: Mapping[str, Any], answers: list[Any]) -> list[float | None] | None:
    """Return a score for each answer, higher is better; None if there are no scores."""
    for names, sign in ((SCORE_LIST_FIELDS, 1.0), (RANK_LIST_FIELDS, -1.0)):
        values = next((record[name] for name in names if isinstance(record.get(name), list)), None)
        if values is not None:
            if len(values) != len(answers):
                raise ShapeError("another number of scores than of answers")
            numbers = [_number(value) for value in values]
            return [None if number is None else sign * number for number in numbers]
    if not any(isinstance(answer, Mapping) for answer in answers):
        return None
    scores = [_score_within(answer) if isinstance(answer, Mapping) else None for answer in answers]
    return scores if any(score is not None for score in scores) else None


def _score_within(answer: Mapping[str, Any]) -> float | None:
    """Return the score in an answer, else the mean of UltraFeedback's ratings by aspect."""
    for name in SCORE_FIELDS:
        if (score := _number(answer.get(name))) is not None:
            return score
    annotations = answer.get("annotations")
    if not isinstance(annotations, Mapping):
        return None
    ratings: list[float] = []
    for aspect in annotations.values():
        if isinstance(aspect, list):
            aspect = aspect[0] if aspect else None
        rating = _number(aspect.get("Rating") if isinstance(aspect, Mapping) else aspect)
        if rating is not None:
            ratings.append(rating)
    return sum(ratings) / len(ratings) if ratings else None


def _number(value: Any) -> float | None:
    """Return a finite number, or the number that a text is; None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


TRUTH_FIELDS: tuple[str, ...] = ("ground_truth", "answer", "final_answer", "target", "solution")
"""Fields with the right answer, by priority; verl's `reward_model.ground_truth` comes before them."""

_LISTS: Final = frozenset(("tools", "functions", "history", *LIST_FIELDS, *SCORE_LIST_FIELDS, *RANK_LIST_FIELDS))
_PROMPTS: Final = frozenset((*CONVERSATION_FIELDS, *PROMPT_FIELDS))
_FIRST: Final = frozenset("[{ \t\r\n")


def with_json_read(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record with its JSON texts read; the record itself where it has none."""
    read: dict[str, Any] = {}
    for name, text in record.items():
        if name in TRUTH_FIELDS:
            continue
        if isinstance(text, str):
            if text[:1] not in _FIRST:
                continue
            value = _parsed(text)
            is_json = _is_known_json(name, value) or _is_conversation(name, value)
        elif isinstance(text, list) and text and isinstance(text[0], str) and text[0][:1] == "{":
            value = [_parsed(item) if isinstance(item, str) else item for item in text]
            is_json = _is_conversation(name, value)
        else:
            continue
        if is_json:
            read[name] = value
    return {**record, **read} if read else record


def _is_known_json(name: str, value: Any) -> bool:
    """Return True for a field that always holds a list or object, and for the `input` of OpenAI's preferences."""
    if isinstance(value, list):
        return name in _LISTS
    if not isinstance(value, dict):
        return False
    messages = value.get("messages")
    return name == "reward_model" or (isinstance(messages, list) and bool(messages) and all(map(is_turn, messages)))


def _is_conversation(name: str, value: Any) -> bool:
    """Return True for messages in a field of a prompt, and for messages that end with an answer in any field."""
    turns = value if isinstance(value, list) else [value]
    return bool(turns) and all(map(is_turn, turns)) and (name in _PROMPTS or is_answer(turns[-1]))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


SHAPES: dict[str, str] = {
    "openai": "input, preferred_output, non_preferred_output",
    "pair": "chosen and rejected (or another pair of `PAIR_FIELDS`), with a prompt or as whole conversations",
    "swift": "query or messages with its response, and rejected_response or rejected_messages",
    "ranked_outputs": "instruction with a list of two outputs, the better one first",
    "verdict": "two answers, and which of them is better",
    "scored": "a list of answers, each with a score; the best against the worst",
}
"""The known shapes and their fields."""

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
"""Pairs of fields: the better answer and the worse one."""

NO_PREFERENCE = "no known shape of a preference"
SAME = "chosen equals rejected"


Preference: TypeAlias = dict[str, Any]
"""`{"prompt": […], "chosen": […], "rejected": […]}`, with `tools` where the record has any.

The answers are messages of the assistant and of tools, the assistant's last.
"""


@dataclass(frozen=True)
class PreferenceFields:
    """Names of a record's fields that are not in `PAIR_FIELDS`."""

    prompt: str | None = None
    chosen: str | None = None
    rejected: str | None = None


def read_preference(record: Mapping[str, Any], fields: PreferenceFields | None = None) -> tuple[Preference, str]:
    """Return the preference of a record, and its shape: a key of `SHAPES`.

    Raises:
        ShapeError: no known shape, an empty or equal answer, a tie, a malformed conversation, or a mark that the row or
            an answer is not to be trained.
    """
    if fields is not None:
        record = _renamed(record, fields)
    record = with_json_read(record)
    refuse_media(record, "the record")
    refuse_untrained_row(record)
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
    for first, second in TWO_FIELDS:
        if first in record and second in record and (wins := _first_wins(record, first, second)) is not None:
            better, worse = (first, second) if wins else (second, first)
            return _between("verdict", record, record[better], record[worse])
    if (pair := _read_scored(record)) is not None:
        return _between("scored", record, *pair)
    raise ShapeError(NO_PREFERENCE, fields_of(record))


def _renamed(record: Mapping[str, Any], fields: PreferenceFields) -> dict[str, Any]:
    renamed = dict(record)
    if fields.prompt is not None:
        for name in (*PROMPT_FIELDS, *CONVERSATION_FIELDS, "history"):
            renamed.pop(name, None)
    for name, field in (("prompt", fields.prompt), ("chosen", fields.chosen), ("rejected", fields.rejected)):
        if field is not None:
            if field not in record:
                raise ShapeError(f"no field {field!r}", fields_of(record))
            renamed[name] = record[field]
    return renamed


def _swift(record: Mapping[str, Any]) -> tuple[Preference, str]:
    """Read the shape of ms-swift: the better answer is the response, or the last message."""
    rejected = record.get("rejected_messages") or record.get("rejected_response")
    if "response" in record:
        return _between("swift", record, record["response"], rejected)
    messages = read_conversation(record.get("messages"))
    if messages[-1]["role"] != "assistant":
        raise ShapeError("messages do not end with an answer")
    if is_conversation(rejected):
        return _between("swift", tools_of(record), record["messages"], rejected)
    start = len(messages)
    while start and messages[start - 1]["role"] in ("assistant", "tool"):
        start -= 1
    return _between("swift", {**record, "messages": messages[:start]}, messages[start:], rejected)


def _between(shape: str, record: Mapping[str, Any], better: Any, worse: Any) -> tuple[Preference, str]:
    chosen, rejected = _answer(better, "chosen"), _answer(worse, "rejected")
    if _is_whole(chosen) and _is_whole(rejected):
        shared = 0
        while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
            shared += 1
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
    stripped = [
        [{**message, "content": message_text(message).strip()} for message in answer] for answer in (chosen, rejected)
    ]
    if stripped[0] == stripped[1]:
        raise ShapeError(SAME)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, **tools_of(record)}, shape


def _answer(value: Any, name: str) -> list[Message]:
    """Return the messages of an answer, with the conversation before it if the value contains one."""
    if isinstance(value, Mapping) and not ("role" in value or "from" in value):
        text = next((value[key] for key in ("response", "text", "content", "full_text") if key in value), None)
        value = text if text is not None else value
    if (messages := read_transcript(value)) is not None:
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
    """Return True for a conversation with its prompt, False for a bare answer."""
    return any(message["role"] in ("user", "system", "developer") for message in messages)
