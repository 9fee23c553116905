"""Is an answer right? Numbers, options, lists and words are compared here; expressions go to math-verify.

Plain numbers, the common case, never touch an algebra package. Expressions are handed to a helper process with a time
limit (`symbolic`), so `is_correct` returns in bounded time on any text, from any thread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from .extract import extract_answer, extract_option
from .symbolic import equivalent
from .values import ListValue, NumberValue, OptionValue, TextValue, Value, clean, parse_value

__all__ = ["DEFAULT_TOLERANCE", "extract_answer", "is_correct", "same_value"]

DEFAULT_TOLERANCE = 1e-6
"""Relative tolerance between numbers of which at least one is no integer."""

_MARKED = re.compile(r"####|\\boxed|\banswer\b", re.IGNORECASE)


def is_correct(predicted: str, gold: Any, *, rel_tol: float | None = None) -> bool:
    """Whether the reply `predicted` gives the answer `gold`.

    The answer is taken out of the reply by `extract_answer`. `gold` is text in any form that a reply may have, a
    number, or a list, tuple or set of such; a list in `gold` asks for the same order, a set does not.

    Numbers are equal when they differ by at most `rel_tol * abs(gold)`. By default integers have to be equal and others
    agree to `DEFAULT_TOLERANCE`. 15% equals both 15 and 0.15. An option has to be the same letter.

    Raises:
        ValueError: `gold` is empty, or `rel_tol` is negative.
        SymbolicError: the process that compares expressions cannot be started.
    """
    if rel_tol is not None and rel_tol < 0:
        raise ValueError(f"rel_tol must be 0 or more, not {rel_tol}")
    wanted = _gold_value(gold)
    answer = extract_option(predicted) if isinstance(wanted, OptionValue) else extract_answer(predicted)
    return answer is not None and same_value(parse_value(clean(answer)), wanted, rel_tol=rel_tol)


def same_value(predicted: Value, gold: Value, *, rel_tol: float | None = None) -> bool:
    """Whether two parsed answers say the same; tolerance and errors as in `is_correct`."""
    if isinstance(predicted, NumberValue) and isinstance(gold, NumberValue):
        return _same_number(predicted, gold, rel_tol)
    if isinstance(gold, OptionValue):
        return predicted == gold
    if isinstance(gold, ListValue) and isinstance(predicted, ListValue):
        return _same_list(predicted, gold, rel_tol)
    if isinstance(gold, ListValue) and len(gold.items) == 1:
        return same_value(predicted, gold.items[0], rel_tol=rel_tol)
    if isinstance(predicted, OptionValue):
        predicted = TextValue(predicted.letter)
    left, right = _as_text(predicted), _as_text(gold)
    if left is None or right is None:
        return False
    return _folded(left) == _folded(right) or equivalent(left, right)


def _gold_value(gold: Any) -> Value:
    if isinstance(gold, bool):
        return TextValue(str(gold))
    if isinstance(gold, int):
        return NumberValue(Fraction(gold), text=str(gold))
    if isinstance(gold, float) and math.isfinite(gold):
        return NumberValue(Fraction(str(gold)), text=str(gold))
    if isinstance(gold, list | tuple | set | frozenset):
        items: Iterable[Any] = gold
        return ListValue(
            "{}" if isinstance(gold, set | frozenset) else "sequence", tuple(_gold_value(item) for item in items)
        )
    text = str(gold)
    if not text.strip():
        raise ValueError("the right answer is empty")
    answer = extract_answer(text) if _MARKED.search(text) else text
    return parse_value(clean(answer or text))


def _same_number(predicted: NumberValue, gold: NumberValue, rel_tol: float | None) -> bool:
    candidates = [(predicted.value, gold.value)]
    if predicted.percent and not gold.percent:
        candidates.append((predicted.value / 100, gold.value))
    if gold.percent and not predicted.percent:
        candidates.append((predicted.value, gold.value / 100))
    return any(_close(left, right, rel_tol) for left, right in candidates)


def _close(left: Fraction, right: Fraction, rel_tol: float | None) -> bool:
    if rel_tol is None:
        if left.denominator == 1 and right.denominator == 1:
            return left == right
        rel_tol = DEFAULT_TOLERANCE
    return abs(left - right) <= Fraction(rel_tol) * abs(right)


def _same_list(predicted: ListValue, gold: ListValue, rel_tol: float | None) -> bool:
    if len(predicted.items) != len(gold.items):
        return False
    if gold.ordered:
        if gold.kind != "sequence" and predicted.kind not in (gold.kind, ""):
            return False
        pairs = zip(predicted.items, gold.items, strict=True)
        return all(same_value(left, right, rel_tol=rel_tol) for left, right in pairs)
    left_over = list(predicted.items)
    for wanted in gold.items:
        found = next((item for item in left_over if same_value(item, wanted, rel_tol=rel_tol)), None)
        if found is None:
            return False
        left_over.remove(found)
    return True


def _as_text(value: Value) -> str | None:
    if isinstance(value, TextValue):
        return value.text
    if isinstance(value, NumberValue):
        return f"({value.value})/100" if value.percent else str(value.value)
    return value.letter if isinstance(value, OptionValue) else None


def _folded(text: str) -> str:
    return re.sub(r"[\s.,;:!?'\"$]+", " ", text).strip().casefold()
