"""Is an answer right? Numbers, options, lists and words are compared here; expressions go to math-verify.

Plain numbers, the common case, never touch an algebra package. Expressions are handed to a helper process with a time
limit (`symbolic`), so `is_correct` returns in bounded time on any text, from any thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .base import Reward, Sample, column
from .extract import extract_answer, extract_option
from .symbolic import equivalent
from .values import ListValue, MappingValue, NumberValue, OptionValue, TextValue, Value, clean, parse_value, value_of

DEFAULT_TOLERANCE = 1e-6
"""Relative tolerance between numbers of which at least one is no integer."""

_MARKED = re.compile(r"####|\\boxed|\banswer\b", re.IGNORECASE)


def is_correct(predicted: str, gold: Any, *, rel_tol: float | None = None, abs_tol: float = 0.0) -> bool:
    """Return True if the reply `predicted` gives the answer `gold`.

    The answer is taken out of the reply by `extract_answer`. `gold` is text in any form that a reply may have, a
    number, or a list, tuple, set or dictionary of such; a list in `gold` asks for the same order, a set does not, and a
    dictionary for the same keys.

    Numbers are equal when they differ by at most `rel_tol * abs(gold)`, or by at most `abs_tol`. By default integers
    have to be equal and others agree to `DEFAULT_TOLERANCE`. 15% equals both 15 and 0.15. An option has to be the same
    letter.

    Raises:
        ValueError: `gold` is empty, or a tolerance is negative.
        SymbolicError: the process that compares expressions cannot be started.
    """
    wanted = _gold_value(gold)
    answer = extract_option(predicted) if isinstance(wanted, OptionValue) else extract_answer(predicted)
    if answer is None:
        return False
    return same_value(parse_value(clean(answer)), wanted, Tolerance(rel_tol, abs_tol))


def same_answer(predicted: str, gold: Any, *, rel_tol: float | None = None, abs_tol: float = 0.0) -> bool:
    """Return True if the bare answer `predicted` says the same as `gold`; otherwise as `is_correct`."""
    return same_value(parse_value(clean(predicted)), _gold_value(gold), Tolerance(rel_tol, abs_tol))


def normalise_answer(text: str) -> str:
    """Return an answer in its plain form: a number without commas, currency and unit, an option in upper case, and
    anything else without decoration, extra space and upper case."""
    value = parse_value(clean(text))
    if isinstance(value, NumberValue):
        return value.text
    return value.letter if isinstance(value, OptionValue) else " ".join(clean(text).casefold().split())


@dataclass(frozen=True)
class Tolerance:
    """Bounds of the difference of two numbers that count as equal.

    Raises:
        ValueError: a tolerance is negative.
    """

    relative: float | None = None
    """Of the right number; None asks integers to be equal and others to agree to `DEFAULT_TOLERANCE`."""
    absolute: float = 0.0

    def __post_init__(self) -> None:
        if self.relative is not None and not self.relative >= 0:
            raise ValueError(f"rel_tol must be 0 or more, not {self.relative}")
        if not self.absolute >= 0:
            raise ValueError(f"abs_tol must be 0 or more, not {self.absolute}")

    def holds(self, left: Fraction, right: Fraction) -> bool:
        """Return True if `left` is as good as `right`."""
        if left == right or (self.absolute and abs(left - right) <= Fraction(self.absolute)):
            return True
        if self.relative is None:
            both_integers = left.denominator == 1 and right.denominator == 1
            return not both_integers and abs(left - right) <= Fraction(DEFAULT_TOLERANCE) * abs(right)
        return abs(left - right) <= Fraction(self.relative) * abs(right)


EXACT = Tolerance()


def same_value(predicted: Value, gold: Value, tolerance: Tolerance = EXACT) -> bool:
    """Return True if two parsed answers say the same; errors as in `is_correct`."""
    if isinstance(predicted, NumberValue) and isinstance(gold, NumberValue):
        return _same_number(predicted, gold, tolerance)
    if isinstance(gold, OptionValue):
        return predicted == gold
    if isinstance(gold, MappingValue) and isinstance(predicted, MappingValue):
        return _same_mapping(predicted, gold, tolerance)
    if isinstance(gold, ListValue) and isinstance(predicted, ListValue):
        return _same_list(predicted, gold, tolerance)
    if isinstance(gold, ListValue) and len(gold.items) == 1:
        return same_value(predicted, gold.items[0], tolerance)
    if isinstance(predicted, OptionValue):
        predicted = TextValue(predicted.letter)
    left, right = _as_text(predicted), _as_text(gold)
    if left is None or right is None:
        return False
    return _folded(left) == _folded(right) or equivalent(left, right)


def _gold_value(gold: Any) -> Value:
    if not isinstance(gold, str):
        return value_of(gold)
    if not gold.strip():
        raise ValueError("the right answer is empty")
    answer = extract_answer(gold) if _MARKED.search(gold) else gold
    return parse_value(clean(answer or gold))


def _same_number(predicted: NumberValue, gold: NumberValue, tolerance: Tolerance) -> bool:
    candidates = [(predicted.value, gold.value)]
    if predicted.percent and not gold.percent:
        candidates.append((predicted.value / 100, gold.value))
    if gold.percent and not predicted.percent:
        candidates.append((predicted.value, gold.value / 100))
    return any(tolerance.holds(left, right) for left, right in candidates)


def _same_mapping(predicted: MappingValue, gold: MappingValue, tolerance: Tolerance) -> bool:
    given = {_folded(key): value for key, value in predicted.items}
    wanted = {_folded(key): value for key, value in gold.items}
    return given.keys() == wanted.keys() and all(same_value(given[key], wanted[key], tolerance) for key in wanted)


def _same_list(predicted: ListValue, gold: ListValue, tolerance: Tolerance) -> bool:
    if len(predicted.items) != len(gold.items):
        return False
    if gold.ordered:
        if gold.kind != "sequence" and predicted.kind not in (gold.kind, ""):
            return False
        pairs = zip(predicted.items, gold.items, strict=True)
        return all(same_value(left, right, tolerance) for left, right in pairs)
    left_over = list(predicted.items)
    for wanted in gold.items:
        found = next((item for item in left_over if same_value(item, wanted, tolerance)), None)
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


class AccuracyReward(Reward):
    """`right` where the final answer equals the row's right answer, else `wrong`.

    Numbers, options, expressions, lists, sets, tuples and dictionaries are compared as `is_correct` does. A completion
    that its token limit cut off (the row says `finish_reason` "length") and one that ends in a tool call give no
    answer and are wrong. A row whose right answer is None or empty gives no reward.
    """

    def __init__(
        self,
        *,
        rel_tol: float | None = None,
        abs_tol: float = 0.0,
        right: float = 1.0,
        wrong: float = 0.0,
        truth: str = "ground_truth",
        name: str = "accuracy",
    ) -> None:
        """`rel_tol` and `abs_tol` are those of `is_correct`; `truth` is the column of the right answers."""
        super().__init__(name)
        self.rel_tol = rel_tol
        self.abs_tol = abs_tol
        self.right = right
        self.wrong = wrong
        self.truth = truth

    def score(self, sample: Sample) -> float | None:
        """`right` or `wrong`.

        Raises:
            RewardError: the rows have no column of right answers.
        """
        gold = column(sample, self.truth)
        if gold is None or (isinstance(gold, str) and not gold.strip()):
            self.failed("the row has no right answer")
            return None
        if sample.columns.get("finish_reason") == "length":
            return self.wrong
        text = sample.text
        if not text:
            return self.wrong
        return self.right if is_correct(text, gold, rel_tol=self.rel_tol, abs_tol=self.abs_tol) else self.wrong
