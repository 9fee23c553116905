"""Preferences in the shapes in which they are published: a prompt, the better answer, the worse answer.

The shape of a record is found by its fields (`SHAPES`). Answers may be text, messages, ShareGPT turns or transcripts;
where both are whole conversations, their common beginning is the prompt. A judgement on two answers, or scores of
several, say which is better.

Fields may hold JSON as text, as in CSV files. A text is read as JSON if it is the JSON text of messages, or if its
field always holds a list. Any other text stays text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..rewards import message_text
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
from .turns import Message, ShapeError, is_answer, is_turn, read_flag, refuse_media

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
"""Fields of two answers of which a judgement says which is better."""
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
"""Fields with a list of answers: texts, or objects with a text and a score."""
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
"""Lists in which 1 is the best."""

TIE = "tie"
_TEXT_FIELDS = ("response", "text", "content", "output", "answer", "completion", "messages")


def read_judged(record: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return the better and the worse of two answers; None where the record has no two judged answers.

    Raises:
        ShapeError: a tie, or a judgement that names neither.
    """
    for first, second in TWO_FIELDS:
        if first in record and second in record:
            wins = _first_wins(record, first, second)
            if wins is not None:
                return (record[first], record[second]) if wins else (record[second], record[first])
    return None


def read_scored(record: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return the best and the worst of a list of answers; None where the record has no such list with scores.

    Answers without a score take no part.

    Raises:
        ShapeError: a tie of all, or fewer than two scored answers.
    """
    answers = next((record[name] for name in LIST_FIELDS if isinstance(record.get(name), list)), None)
    if answers is None:
        return None
    scores = _scores(record, answers)
    if scores is None:
        return None
    pairs = zip(scores, map(_text, answers), strict=True)
    scored = [(score, text) for score, text in pairs if score is not None and text]
    if len(scored) < 2:
        raise ShapeError("fewer than two scored answers")
    best, worst = max(scored, key=lambda pair: pair[0]), min(scored, key=lambda pair: pair[0])
    if best[0] == worst[0]:
        raise ShapeError(TIE)
    return best[1], worst[1]


def _first_wins(record: Mapping[str, Any], first: str, second: str) -> bool | None:
    """Return True if the first answer is better; None without a judgement."""
    if first == "human_ref_A" and "labels" in record:  # SHP: 1 stands for A
        wins = read_flag(record["labels"])
        if wins is None:
            raise ShapeError("the judgement names neither answer", f"labels is {record['labels']!r}"[:60])
        return wins
    if (wins := _of_flags(record)) is not None:
        return wins
    left, right = _ending(first), _ending(second)
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
    judgement = _word(record[name])
    if "tie" in judgement or "both" in judgement or judgement in ("equal", "neither", "same"):
        raise ShapeError(TIE)
    for ending, field, wins in ((left, first.lower(), True), (right, second.lower(), False)):
        if judgement in (ending, field) or judgement.endswith(("_" + ending, " " + ending)):
            return wins
    raise ShapeError("the judgement names neither answer", f"{name} is {judgement[:40]!r}")


def _of_flags(record: Mapping[str, Any]) -> bool | None:
    """Return True if the first of two answers won by a flag for each outcome, as Chatbot Arena has them."""
    flags = [read_flag(record.get(name)) for name in ("winner_model_a", "winner_model_b")]
    if None in flags:
        return None
    if flags[0] == flags[1]:
        raise ShapeError(TIE)
    return flags[0]


def _ending(field: str) -> str:
    """Return the character that tells a field from its counterpart: "a" of response_a, "1" of response1."""
    return field[-1].lower()


def _word(value: Any) -> str:
    number = None if isinstance(value, bool) else _number(value)
    if number is not None and number.is_integer():
        value = int(number)
    return str(int(value) if isinstance(value, bool) else value).strip().lower()


def _scores(record: Mapping[str, Any], answers: list[Any]) -> list[float | None] | None:
    """Return a score for each answer, higher is better; None without any."""
    for names, sign in ((SCORE_LIST_FIELDS, 1.0), (RANK_LIST_FIELDS, -1.0)):
        values = next((record[name] for name in names if isinstance(record.get(name), list)), None)
        if values is not None:
            if len(values) != len(answers):
                raise ShapeError("another number of scores than of answers")
            numbers = [_number(value) for value in values]
            return [None if number is None else sign * number for number in numbers]
    if not any(isinstance(answer, Mapping) for answer in answers):
        return None
    scores = [_own_score(answer) if isinstance(answer, Mapping) else None for answer in answers]
    return scores if any(score is not None for score in scores) else None


def _own_score(answer: Mapping[str, Any]) -> float | None:
    """Return the score in an answer; without one the mean of its ratings, as UltraFeedback gives them by aspect."""
    for name in SCORE_FIELDS:
        if (score := _number(answer.get(name))) is not None:
            return score
    annotations = answer.get("annotations")
    if not isinstance(annotations, Mapping):
        return None
    ratings = [_rating(aspect) for aspect in annotations.values()]
    known = [rating for rating in ratings if rating is not None]
    return sum(known) / len(known) if known else None


def _rating(aspect: Any) -> float | None:
    if isinstance(aspect, list):
        aspect = aspect[0] if aspect else None
    return _number(aspect.get("Rating")) if isinstance(aspect, Mapping) else _number(aspect)


def _text(answer: Any) -> Any:
    if isinstance(answer, Mapping):
        return next((answer[name] for name in _TEXT_FIELDS if answer.get(name)), None)
    return answer


def _number(value: Any) -> float | None:
    """Return a finite number, also out of its text."""
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
