"""The reward of showing one's working, and showing it right: the calculations that a text writes down.

Both sides of "12 * 30 = 360" are evaluated exactly, with bounded length and no powers, so that any text is read in time
linear in it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal, TypeAlias

from .base import Reward, Sample
from .extract import MAX_TEXT

MAX_EQUATIONS = 200
"""Calculations of a text that are read, the last ones."""
_MAX_SIDE = 120
"""Characters of one side."""
_MAX_DIGITS = 30
"""Digits of one number."""

_LEFT = re.compile(r"[-+*/×÷·−–()\d.,$€£ \t]{1,120}$")
_RIGHT = re.compile(r"[-+*/×÷·−–()\d.,$€£ \t]{1,120}")
_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "$": None, "€": None, "£": None})
_TIMES = re.compile(r"(?<=\d)\s*[xX]\s*(?=[\d($€£])")
_GROUPS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_BESIDE = re.compile(r"(?<=[\d)])[.,]?\s+(?=[\d.(])")
_BULLET = re.compile(r"\s*[-*•–]\s+")
_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True)
class Equation:
    """One calculation."""

    text: str
    """As written, without spaces and currency."""
    right: bool
    """True if both sides are equal, but for the rounding of the digits that are written."""


def equations(text: str) -> list[Equation]:
    """Return the calculations of a text, in order, each once. An "=" without an operation on either side is none."""
    found: dict[str, Equation] = {}
    for line in text[-MAX_TEXT:].splitlines():
        bullet = _BULLET.match(line)
        sides = _TIMES.sub(" * ", line[bullet.end() :] if bullet else line).split("=")
        for left, right in pairwise(sides):
            equation = _equation(left[-_MAX_SIDE:], right[:_MAX_SIDE])
            if equation is not None:
                found.setdefault(equation.text, equation)
    return list(found.values())[-MAX_EQUATIONS:]


def _equation(before: str, after: str) -> Equation | None:
    left, right = _LEFT.search(before), _RIGHT.match(after)
    if left is None or right is None:
        return None
    first, second = _plain(left.group(), -1), _plain(right.group(), 0)
    if not (_operates(first) or _operates(second)):
        return None
    values = _value(first), _value(second)
    if values[0] is None or values[1] is None:
        return None
    return Equation(f"{first}={second}", _agree(values[0], values[1], _decimals(second)))


def _plain(side: str, place: int) -> str:
    """Return one side as an expression: no spaces, currency and thousands commas. Of several numbers that only stand
    beside each other, as in "1. 3 + 4", the one at `place` is part of the calculation."""
    side = _GROUPS.sub("", side.translate(_SPELLINGS)).strip(" \t,")
    side = _BESIDE.split(side)[place]
    return re.sub(r"\s+|\.(?!\d)", "", side).rstrip("+-*/(,")


def _operates(side: str) -> bool:
    return bool(re.search(r"[\d)][-+*/]", side))


def _value(side: str) -> Fraction | None:
    """Return the value of an expression; None where it is none."""
    if not side or any(len(number) > _MAX_DIGITS for number in _NUMBER.findall(side)):
        return None
    try:  # as string literals numbers keep every digit
        return _evaluate(ast.parse(_NUMBER.sub(r'"\g<0>"', side), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _evaluate(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    raise ValueError("no arithmetic")


def _decimals(side: str) -> int:
    """Decimal places of a side that is a number; 0 otherwise."""
    found = re.fullmatch(r"-?\d*\.(\d+)", side)
    return len(found[1]) if found else 0


def _agree(left: Fraction, right: Fraction, decimals: int) -> bool:
    return left == right or (decimals > 0 and abs(left - right) * 2 * 10**decimals <= 1)


StepKind: TypeAlias = Literal["calculations", "marked"]

_MARKED = re.compile(
    r"[ \t>*#_-]{0,8}(?:step[ \t]*\d{1,3}\b|\d{1,3}[.):、][ \t]*\S|第[一二三四五六七八九十\d]{1,3}步|"
    r"(?:first|second|third|then|next|finally)\b|首先|其次|然后|接着|最后)",
    re.IGNORECASE,
)


def count_steps(text: str) -> int:
    """Lines that begin as a step does ("Step 1", "1.", "First", "第一步"), each text of a line once."""
    lines = text[-MAX_TEXT:].splitlines()
    return len({line.strip().casefold() for line in lines if _MARKED.match(line)})


class StepReward(Reward):
    """From 0 to 1: how much of the working there is, up to `expected` steps, and how much of it is right.

    With `calculations`, a step is one like "12 * 30 = 360"; wrong ones count against right ones: the reward is
    `right / max(expected, right + wrong)`. With `marked`, a step is a line that begins as one does, whatever it says:
    `min(steps, expected) / expected`. A step that is repeated counts once; steps beyond those expected gain nothing.
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
        """Return the share of the asked-for formats that the answer has."""
        if self.kind == "marked":
            return min(count_steps(sample.written), self.expected) / self.expected
        found = equations(sample.written)
        right = sum(equation.right for equation in found)
        return right / max(self.expected, len(found))
