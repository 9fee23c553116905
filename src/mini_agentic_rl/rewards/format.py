"""Rewards for the form of a reply, whatever its answer: format, length and working steps.

Calculations such as "12 * 30 = 360" are evaluated by the bounded calculator of `tools`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from ..tools import calculate
from .base import Reward, RewardError, Sample
from .extract import MAX_TEXT

_ANSWER_LINE = re.compile(r"^answer:[ \t]*\S", re.IGNORECASE | re.MULTILINE)
TEMPLATE_TAG: Final = re.compile(r"<\|[^<>|\n]{1,40}\|>|</?(?:tool_\w+|tools|think|answer|s)>|\[/?(?:INST|TOOL_\w+)\]")
"""A tag of a chat template."""
_BOXED = re.compile(r"\\boxed\s*\{\s*[^\s}]")


def has_answer_line(text: str) -> bool:
    """Return True if the last non-empty line, and only that line, is "Answer: …" with an answer."""
    lines = text.strip().splitlines()
    return bool(lines) and bool(_ANSWER_LINE.match(lines[-1])) and len(_ANSWER_LINE.findall(text)) == 1


def has_template_tags(text: str) -> bool:
    """Return True if the text has tags of a chat template, such as </tool_response>."""
    return bool(TEMPLATE_TAG.search(text))


def ends_cleanly(text: str) -> bool:
    """Return True if the text ends in its only line "Answer: …" and has no tags of a chat template."""
    return has_answer_line(text) and not has_template_tags(text)


def has_boxed_answer(text: str) -> bool:
    r"""Return True if the text has exactly one non-empty \boxed{…}."""
    return len(_BOXED.findall(text)) == 1


def has_thinking(text: str) -> bool:
    """Return True if the text is one non-empty <think>…</think> block followed by other text."""
    match = re.fullmatch(r"\s*<think>(.*?)</think>(.*)", text, re.DOTALL)
    return match is not None and all(part.strip() and "think>" not in part for part in match.groups())


FormName: TypeAlias = Literal["answer_line", "clean", "boxed", "thinking"]

_FORMS: dict[FormName, Callable[[str], bool]] = {
    "answer_line": has_answer_line,
    "clean": ends_cleanly,
    "boxed": has_boxed_answer,
    "thinking": has_thinking,
}


class FormatReward(Reward):
    """The share of `forms` that the final answer has, from 0 to 1."""

    def __init__(self, *forms: FormName | Callable[[str], bool], name: str = "format") -> None:
        """`forms` are values of `FormName`, or functions of the text; the default is an answer line.

        Raises:
            ValueError: an unknown name.
        """
        super().__init__(name)
        unknown = [form for form in forms if isinstance(form, str) and form not in _FORMS]
        if unknown:
            raise ValueError(f"form must be one of {', '.join(_FORMS)}, or a function of the text, not {unknown[0]!r}")
        self._checks = [_FORMS[form] if isinstance(form, str) else form for form in forms or ("answer_line",)]

    def score(self, sample: Sample) -> float | None:
        """Return the share of the forms that the answer has."""
        text = sample.text[-MAX_TEXT:]
        return sum(bool(check(text)) for check in self._checks) / len(self._checks)


def length_penalty(n_tokens: int, *, free: int, limit: int) -> float:
    """Return 0 up to `free` tokens, falling linearly to -1 at `limit` tokens and beyond.

    The soft over-long punishment of DAPO (arXiv:2503.14476, equation 13), with a buffer of `limit - free`.

    Raises:
        ValueError: unless 0 <= free < limit and n_tokens >= 0.
    """
    if not 0 <= free < limit:
        raise ValueError(f"length_penalty needs 0 <= free < limit, not free={free}, limit={limit}")
    if n_tokens < 0:
        raise ValueError(f"n_tokens must be 0 or more, not {n_tokens}")
    return -min(1.0, max(0, n_tokens - free) / (limit - free))


Unit: TypeAlias = Literal["tokens", "characters", "words"]


class LengthPenaltyReward(Reward):
    """`length_penalty` of the assistant's text: 0 up to `free`, falling to `-weight` at `limit` and beyond."""

    def __init__(
        self,
        *,
        free: int,
        limit: int,
        unit: Unit = "tokens",
        weight: float = 1.0,
        count: Callable[[str], int] | None = None,
        name: str = "length",
    ) -> None:
        """`count` returns the length of a text, in place of `unit`. Tokens are counted in TRL's column
        `completion_ids`.

        Raises:
            ValueError: unless 0 <= free < limit.
        """
        super().__init__(name)
        length_penalty(0, free=free, limit=limit)
        self.free = free
        self.limit = limit
        self.unit = unit
        self.weight = weight
        self._count = count

    def score(self, sample: Sample) -> float | None:
        """Return the penalty, from `-weight` to 0.

        Raises:
            RewardError: the unit is tokens, and there is no column `completion_ids`.
        """
        if self._count is not None:
            length = self._count(sample.written)
        elif self.unit == "characters":
            length = len(sample.written)
        elif self.unit == "words":
            length = len(sample.written.split())
        else:
            ids = sample.columns.get("completion_ids")
            if ids is None:
                raise RewardError(
                    'the length in tokens needs the column "completion_ids", or `count`, or another `unit` than tokens'
                )
            length = len(ids)
        return self.weight * length_penalty(length, free=self.free, limit=self.limit)


MAX_EQUATIONS = 200
"""Number of calculations of a text that are read, from its end."""
_MAX_SIDE = 120
"""Characters of one side of an equation."""

_LEFT = re.compile(r"[-+*/×÷·−–()\d.,$€£ \t]{1,120}$")
_RIGHT = re.compile(r"[-+*/×÷·−–()\d.,$€£ \t]{1,120}")
_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "$": None, "€": None, "£": None})
_TIMES = re.compile(r"(?<=\d)\s*[xX]\s*(?=[\d($€£])")
_GROUPS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_BESIDE = re.compile(r"(?<=[\d)])[.,]?\s+(?=[\d.(])")
_BULLET = re.compile(r"\s*[-*•–]\s+")
_OPERATION = re.compile(r"[\d)][-+*/]")


@dataclass(frozen=True)
class Equation:
    """One calculation."""

    text: str
    """The equation without spaces and currency."""
    right: bool
    """True if both sides are equal, up to the rounding of the written decimals."""


def equations(text: str) -> list[Equation]:
    """Return the distinct calculations of a text, in order. An "=" without an operation on either side is ignored."""
    by_text: dict[str, Equation] = {}
    for line in text[-MAX_TEXT:].splitlines():
        bullet = _BULLET.match(line)
        sides = _TIMES.sub(" * ", line[bullet.end() :] if bullet else line).split("=")
        for left, right in pairwise(sides):
            equation = _equation(left[-_MAX_SIDE:], right[:_MAX_SIDE])
            if equation is not None:
                by_text.setdefault(equation.text, equation)
    return list(by_text.values())[-MAX_EQUATIONS:]


def _equation(before: str, after: str) -> Equation | None:
    left, right = _LEFT.search(before), _RIGHT.match(after)
    if left is None or right is None:
        return None
    first, second = _plain(left.group(), -1), _plain(right.group(), 0)
    if not (_OPERATION.search(first) or _OPERATION.search(second)):
        return None
    left_value, right_value = _value(first), _value(second)
    if left_value is None or right_value is None:
        return None
    decimals = re.fullmatch(r"-?\d*\.(\d+)", second)
    is_right = left_value == right_value or (
        decimals is not None and abs(left_value - right_value) * 2 * 10 ** len(decimals[1]) <= 1
    )
    return Equation(f"{first}={second}", is_right)


def _plain(side: str, place: int) -> str:
    """Return one side as an expression without spaces, currency and thousands commas.

    Of expressions that are not joined by an operator, as in "1. 3 + 4", the one at index `place` is taken.
    """
    side = _GROUPS.sub("", side.translate(_SPELLINGS)).strip(" \t,")
    side = _BESIDE.split(side)[place]
    return re.sub(r"\s+|\.(?!\d)", "", side).rstrip("+-*/(,")


def _value(expression: str) -> Fraction | None:
    """Return the value of an arithmetic expression; None for anything else."""
    try:
        return Fraction(calculate(expression))
    except ValueError:  # the calculator has answered with an error
        return None


StepKind: TypeAlias = Literal["calculations", "marked"]

_MARKED = re.compile(
    r"[ \t>*#_-]{0,8}(?:step[ \t]*\d{1,3}\b|\d{1,3}[.):、][ \t]*\S|第[一二三四五六七八九十\d]{1,3}步|"
    r"(?:first|second|third|then|next|finally)\b|首先|其次|然后|接着|最后)",
    re.IGNORECASE,
)


def count_steps(text: str) -> int:
    """Return the number of distinct lines that begin like a step ("Step 1", "1.", "First", "第一步")."""
    lines = text[-MAX_TEXT:].splitlines()
    return len({line.strip().casefold() for line in lines if _MARKED.match(line)})


class StepReward(Reward):
    """The share of `expected` working steps that a reply shows, from 0 to 1.

    With `calculations`, a step is a calculation such as "12 * 30 = 360", and wrong ones lower the reward:
    `right / max(expected, right + wrong)`. With `marked`, a step is a line counted by `count_steps`:
    `min(steps, expected) / expected`. A repeated step counts once; further steps gain nothing.
    """

    def __init__(self, *, expected: int = 1, kind: StepKind = "calculations", name: str = "steps") -> None:
        """
        Raises:
            ValueError: `expected` is below 1.
        """
        super().__init__(name)
        if expected < 1:
            raise ValueError(f"expected must be 1 or more, not {expected}")
        self.expected = expected
        self.kind = kind

    def score(self, sample: Sample) -> float | None:
        """Return the share of the expected steps."""
        if self.kind == "marked":
            return min(count_steps(sample.written), self.expected) / self.expected
        calculations = equations(sample.written)
        return sum(equation.right for equation in calculations) / max(self.expected, len(calculations))
