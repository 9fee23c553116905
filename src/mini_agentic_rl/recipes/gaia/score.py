"""GAIA's score of an answer: quasi exact match (Mialon et al. 2023, arXiv:2311.12983, and its leaderboard's rules).

What the right answer looks like decides how it is compared:

- a number: as numbers, after "$", "%" and thousands commas were taken out of the given answer;
- a list (it holds a comma or a semicolon): item by item and in order, with as many items; an item that is a number as a
  number, any other as text in which punctuation counts;
- else text: without white space, punctuation and upper case.
"""

from __future__ import annotations

import re
import string

MARKER = "FINAL ANSWER:"
"""Marker that the benchmark asks for before an answer."""

_ANSWER = re.compile(rf"{re.escape(MARKER)}[ \t]*\n?([^\n]*)", re.IGNORECASE)
_SEPARATORS = re.compile("[,;]")
_UNITS = str.maketrans("", "", "$%,")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def final_answer(text: str) -> str | None:
    """Return the text after the last "FINAL ANSWER:" on its line (or on the next, where the line ends there); None
    without it.

    Emphasis around it and brackets that enclose it are taken off.
    """
    found = _ANSWER.findall(text)
    if not found:
        return None
    answer = str(found[-1]).strip().strip("*`").strip()
    if answer.startswith("[") and answer.endswith("]"):
        answer = answer[1:-1].strip()
    return answer or None


def is_right(answer: str | None, gold: str) -> bool:
    """Return True if `answer` scores for a question whose answer is `gold`. None, no answer, is wrong."""
    if answer is None:
        return False
    if _number(gold) is not None:
        return _same_number(answer, gold)
    if _SEPARATORS.search(gold):
        given, wanted = _SEPARATORS.split(answer), _SEPARATORS.split(gold)
        return len(given) == len(wanted) and all(
            _same_number(one, other) if _number(other) is not None else _letters(one) == _letters(other)
            for one, other in zip(given, wanted, strict=True)
        )
    return _letters(answer).translate(_PUNCTUATION) == _letters(gold).translate(_PUNCTUATION)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _same_number(answer: str, gold: str) -> bool:
    return _number(answer.translate(_UNITS)) == _number(gold)


def _letters(text: str) -> str:
    """Without white space and upper case."""
    return "".join(text.split()).lower()
