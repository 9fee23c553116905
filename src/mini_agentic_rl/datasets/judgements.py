"""The better of several answers: by a judgement on two of them, or by scores."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from .turns import ShapeError, read_flag

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
