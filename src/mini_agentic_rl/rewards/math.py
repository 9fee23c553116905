"""Compare an answer with the right one: numbers, options, lists and words here, expressions by math-verify.

math-verify runs in a helper process, which starts on first use and is killed when a comparison takes too long: no limit
on the text can bound computer algebra, and signals work in the main thread only. So `is_correct` returns in bounded
time on any text, from any thread. Results are cached. Plain numbers never need the helper.
"""

from __future__ import annotations

import functools
import logging
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any

from ..errors import UserError
from ..processes import DeadlineProcess, EndedError, LateError, NotReadyError
from .base import Reward, RewardError, Sample
from .extract import ANSWER_WORDS, announced_text, extract_answer, extract_option
from .values import ListValue, NumberValue, OptionValue, TextValue, Value, clean, parse_value, value_of

logger = logging.getLogger(__name__)

TIME_LIMIT = 5.0
"""Seconds for one comparison."""
MAX_LENGTH = 300
"""Characters of the longest expression that is compared."""

_MATHEMATICAL = re.compile(r"[\d\\+*/^=<>π⁰¹²³⁴-⁹]|^\W*[A-Za-z]\W*$|\b(?:pi|sqrt|sin|cos|tan|log|ln|exp|inf)\b")


class SymbolicError(RuntimeError):
    """The helper process cannot be used."""


_helper = DeadlineProcess(f"{__package__}.symbolic_worker")


@functools.lru_cache(maxsize=10_000)
def _compare_expressions(predicted: str, gold: str) -> tuple[bool | list[list[str]], float]:
    """Return whether both are equal, or their possible pairs of values as decimals; and the seconds that it took.

    The seconds are those of the helper alone, without its start and the calls of other threads.

    Raises:
        SymbolicError: the helper process cannot be started, or ended for another reason than the time limit.
    """
    try:
        result, seconds = _helper.ask([predicted, gold], TIME_LIMIT)
        return result, seconds
    except LateError:
        logger.warning("comparing %r with %r took over %.0f s; it counts as wrong", predicted, gold, TIME_LIMIT)
        return False, TIME_LIMIT
    except NotReadyError as error:
        raise SymbolicError(f"expressions cannot be compared by math-verify: {error}") from error
    except EndedError as error:
        raise SymbolicError(f"comparing {predicted!r} with {gold!r}: {error}") from error


DEFAULT_TOLERANCE = 0.01
"""Relative tolerance between a value and a rounded one."""

_MARKED = re.compile(rf"####|\\boxed|{ANSWER_WORDS}", re.IGNORECASE)


def is_correct(predicted: str, gold: Any, *, rel_tol: float | None = None, abs_tol: float = 0.0) -> bool:
    """Return True if the reply `predicted` gives the answer `gold`.

    The answer is extracted by `extract_answer`. `gold` is text in any form that a reply may have, a number, or a list,
    tuple or set of these. The items of a list or tuple must be in the same order, those of a set need not.

    Numbers are equal if they differ by at most `rel_tol * abs(gold)`, or by at most `abs_tol`; an expression with a
    value, such as sqrt(2), is a number. By default, numbers agree within `DEFAULT_TOLERANCE`, but integers must be
    equal, and of two decimals one must be the other rounded or cut off: 3.14 equals 3.1416, and 12.46 does not equal
    12.45. 15% equals both 15 and 0.15. Units are compared if both answers have a known one: 5 km equals 5000 m, and
    neither 5 m nor 5 kg. Nothing equals nan.

    Raises:
        ToleranceError: a tolerance is no number, negative, or for `rel_tol` 1 or more.
        ValueError: `gold` is empty or nan.
        SymbolicError: the process that compares expressions cannot be started.
    """
    tolerance = Tolerance(rel_tol, abs_tol)
    wanted = _gold_value(gold)
    if isinstance(wanted, TextValue | ListValue) and _same_words(announced_text(predicted), wanted, tolerance):
        return True
    answer = extract_option(predicted) if isinstance(wanted, OptionValue) else extract_answer(predicted, units=True)
    return answer is not None and same_value(parse_value(clean(answer)), wanted, tolerance)


def same_answer(predicted: str, gold: Any, *, rel_tol: float | None = None, abs_tol: float = 0.0) -> bool:
    """Return True if the answer `predicted`, without a reply around it, equals `gold`; otherwise as `is_correct`."""
    return same_value(parse_value(clean(predicted)), _gold_value(gold), Tolerance(rel_tol, abs_tol))


def normalise_answer(text: str) -> str:
    """Return an answer in plain form: a number without commas, currency and unit, an option in upper case, any other
    text in lower case without markup and extra spaces."""
    value = parse_value(clean(text))
    if isinstance(value, NumberValue):
        return value.text
    return value.letter if isinstance(value, OptionValue) else " ".join(clean(text).casefold().split())


class ToleranceError(UserError, ValueError):
    """A tolerance out of range."""


def check_tolerance(value: Any, setting: str, below: float | None = None) -> None:
    """Check a tolerance.

    Raises:
        ToleranceError: it is not a number of 0 or more, or not below the bound.
    """
    bound = math.inf if below is None else below
    if not isinstance(value, bool) and isinstance(value, Real) and 0 <= float(value) < bound:
        return
    bounds = "a number, 0 or more" if below is None else f"a number from 0 to below {below:g} (0.01 is one percent)"
    raise ToleranceError(f"must be {bounds}, not {value!r}", setting=setting)


@dataclass
class Tolerance:
    """Bounds of the difference of two equal numbers, for the comparisons of one answer.

    Raises:
        ToleranceError: a tolerance is no number, negative, or for the relative one 1 or more.
    """

    relative: float | None = None
    """Share of the right number; None takes `DEFAULT_TOLERANCE`, and is stricter with integers and decimals."""
    absolute: float = 0.0
    seconds_left: float = TIME_LIMIT
    """Seconds for all symbolic comparisons of the answer: a list may have a hundred slow items."""

    def __post_init__(self) -> None:
        if self.relative is not None:
            check_tolerance(self.relative, "rel_tol", below=1)
        check_tolerance(self.absolute, "abs_tol")

    def same_expression(self, predicted: str, gold: str) -> bool:
        """Return True if two expressions (plain text or LaTeX) are equal, or have real values within the tolerance.

        False if either is no expression, is longer than `MAX_LENGTH`, or takes longer than `TIME_LIMIT` (logged), and
        if earlier comparisons of the answer have used up its time.

        Raises:
            SymbolicError: the helper process cannot be used.
        """
        if max(len(predicted), len(gold)) > MAX_LENGTH or self.seconds_left <= 0:
            return False
        if not (_MATHEMATICAL.search(predicted) and _MATHEMATICAL.search(gold)):
            return False
        result, seconds = _compare_expressions(predicted, gold)
        self.seconds_left -= seconds
        if isinstance(result, bool):
            return result
        return any(self.holds(Fraction(left), Fraction(right)) for left, right in result)

    def holds(self, left: Fraction, right: Fraction, *, written: bool = False) -> bool:
        """Return True if the numbers are equal within the tolerance. `written` numbers are those of the answers, not
        computed values: by default, such decimals are equal only if one may be the other rounded."""
        if left == right or (self.absolute and abs(left - right) <= _exact(self.absolute)):
            return True
        if self.relative is not None:
            return abs(left - right) <= _exact(self.relative) * abs(right)
        if left.denominator == right.denominator == 1 or (written and not _is_rounded(left, right)):
            return False
        return abs(left - right) <= _exact(DEFAULT_TOLERANCE) * abs(right)


def _is_rounded(left: Fraction, right: Fraction) -> bool:
    """Return True unless both are decimals, and neither is the other rounded or cut off."""
    (fewer, rounded), (more, value) = sorted((_places(value), value) for value in (left, right))
    if more == math.inf:
        return True
    unit = Fraction(1, 10 ** int(fewer))
    return abs(value - rounded) <= unit / 2 or (0 <= abs(value) - abs(rounded) < unit and value * rounded >= 0)


def _places(value: Fraction) -> float:
    """Return the number of decimal places of a number; infinity if they never end."""
    rest, counts = value.denominator, {2: 0, 5: 0}
    for factor in counts:
        while rest % factor == 0:
            rest //= factor
            counts[factor] += 1
    return max(counts.values()) if rest == 1 else math.inf


def _exact(tolerance: float) -> Fraction:
    """Return a tolerance as the fraction of its decimal text: 0.01 is one hundredth."""
    return Fraction(str(float(tolerance)))


def same_value(predicted: Value, gold: Value, tolerance: Tolerance | None = None) -> bool:
    """Return True if two parsed answers are equal; errors as in `is_correct`."""
    tolerance = tolerance or Tolerance()
    if isinstance(predicted, NumberValue) and isinstance(gold, NumberValue):
        return _same_number(predicted, gold, tolerance)
    if isinstance(gold, ListValue) and isinstance(predicted, ListValue):
        return _same_list(predicted, gold, tolerance)
    if isinstance(gold, ListValue) and len(gold.items) == 1:
        return same_value(predicted, gold.items[0], tolerance)
    if isinstance(predicted, ListValue) and len(predicted.items) == 1:
        return same_value(predicted.items[0], gold, tolerance)
    if isinstance(gold, OptionValue):
        return predicted == gold
    if isinstance(predicted, OptionValue):
        predicted = TextValue(predicted.letter.lower())  # e is a number, and E none
    left, right = _as_text(predicted), _as_text(gold)
    if left is None or right is None or _folded(left) == "nan":
        return False
    return _folded(left) == _folded(right) or tolerance.same_expression(left, right)


def _gold_value(gold: Any) -> Value:
    if not isinstance(gold, str):
        return value_of(gold)
    if not gold.strip():
        raise ValueError("the right answer is empty")
    answer = extract_answer(gold, units=True) if _MARKED.search(gold) else gold
    return parse_value(clean(answer or gold))


def _same_words(words: str, gold: TextValue | ListValue, tolerance: Tolerance) -> bool:
    """Return True if a text with numbers and words, such as "May 3, 2024" or "5 apples and 3 pears", is `gold`."""
    if isinstance(gold, TextValue):
        return _folded(words) == _folded(gold.text) != "nan"
    value = parse_value(words)
    return isinstance(value, ListValue) and same_value(value, gold, tolerance)


def _same_number(predicted: NumberValue, gold: NumberValue, tolerance: Tolerance) -> bool:
    if predicted.unit is not None and gold.unit is not None:
        same_kind = predicted.unit.kind == gold.unit.kind
        return same_kind and tolerance.holds(
            predicted.value * predicted.unit.factor, gold.value * gold.unit.factor, written=True
        )
    candidates = [(predicted.value, gold.value)]
    if predicted.percent and not gold.percent:
        candidates.append((predicted.value / 100, gold.value))
    if gold.percent and not predicted.percent:
        candidates.append((predicted.value, gold.value / 100))
    return any(tolerance.holds(left, right, written=True) for left, right in candidates)


def _same_list(predicted: ListValue, gold: ListValue, tolerance: Tolerance) -> bool:
    if len(predicted.items) != len(gold.items):
        return False
    if gold.ordered:
        if gold.kind != "sequence" and predicted.kind not in (gold.kind, "sequence", ""):
            return False
        pairs = zip(predicted.items, gold.items, strict=True)
        return all(same_value(left, right, tolerance) for left, right in pairs)
    unmatched = list(predicted.items)
    for wanted in gold.items:
        match = next((item for item in unmatched if same_value(item, wanted, tolerance)), None)
        if match is None:
            return False
        unmatched.remove(match)
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
    """`right` if the final answer equals the row's right answer by `is_correct`, else `wrong`.

    A completion that was cut off at its token limit (the row has `finish_reason` "length") or ends in a tool call is
    wrong. A row whose right answer is None or empty gives no reward.
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
        """`rel_tol` and `abs_tol` are as in `is_correct`; `truth` is the column of the right answers.

        Raises:
            ToleranceError: a tolerance is no number, negative, or for `rel_tol` 1 or more.
        """
        super().__init__(name)
        Tolerance(rel_tol, abs_tol)
        self.rel_tol = rel_tol
        self.abs_tol = abs_tol
        self.right = right
        self.wrong = wrong
        self.truth = truth

    def score(self, sample: Sample) -> float | None:
        """Return `right` or `wrong`.

        Raises:
            RewardError: the rows have no column of right answers.
        """
        if self.truth not in sample.columns:
            known = ", ".join(sorted(sample.columns)) or "none"
            raise RewardError(f"the reward needs the column {self.truth!r}; the columns are: {known}")
        gold = sample.columns[self.truth]
        if gold is None or (isinstance(gold, str) and not gold.strip()):
            return self.failed("the row has no right answer")
        if sample.columns.get("finish_reason") == "length":
            return self.wrong
        text = sample.text
        is_right = bool(text) and is_correct(text, gold, rel_tol=self.rel_tol, abs_tol=self.abs_tol)
        return self.right if is_right else self.wrong
