"""Countdown: reach a target with some numbers, each at most once, and + - * /.

It tests search: many operations have to be tried, and a solution is easy to check. The check is exact, with fractions.
"""

from __future__ import annotations

import ast
import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Final

from ...datasets import TRANSFER, Message, Row, assistant
from ...environments import Episode, Episodes, belongs, field_of, last_line
from ...rewards import message_text

VALID: Final = 0.1
"""Reward of an expression that keeps to the rules and misses the target."""

_COUNTS: Final = {1: 2, 2: 3, 3: 4, 4: 6}
"""Number of numbers by level."""
_TARGETS: Final = (2, 999)
_WORDINGS: Final = ("Numbers: {numbers}. Target: {target}.",)
_OTHER_WORDINGS: Final = (
    "Make {target} from {numbers}.",
    "Which expression over {numbers} has the value {target}?",
    "You hold the cards {numbers}. Reach {target}.",
)
_OPERATIONS: Final[Mapping[str, Callable[[Fraction, Fraction], Fraction]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_SYMBOLS: Final[Mapping[type[ast.operator], str]] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_EXPRESSION: Final = re.compile(r"[0-9+\-*/() ]+")
_MAX_LENGTH: Final = 100


def value_of(expression: str, numbers: Sequence[int]) -> Fraction | None:
    """Return the exact value of an expression over some of the numbers, each used at most once.

    None where it is no such expression, divides by zero, or is longer than 100 characters.
    """
    if len(expression) > _MAX_LENGTH or _EXPRESSION.fullmatch(expression) is None:
        return None
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    left = Counter(numbers)

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp) and type(node.op) in _SYMBOLS:
            return _OPERATIONS[_SYMBOLS[type(node.op)]](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and left[node.value] > 0:
            left[node.value] -= 1
            return Fraction(node.value)
        raise ValueError

    try:
        return value(tree)
    except (ValueError, ZeroDivisionError):
        return None


class Countdown(Episodes):
    """Level 1 has two numbers, then three, four and six. `transfer` asks in other words, with larger numbers."""

    name: ClassVar[str] = "countdown"
    prompt: ClassVar[str] = (
        "Reach the target: use each number at most once, with + - * / and parentheses. Try, then end with one line "
        '"Answer: expression".'
    )
    max_new_tokens: ClassVar[int] = 80

    def draw(self, rng: random.Random, split: str, level: int) -> Row | None:
        """Return numbers, a target that can be reached, and how."""
        low, high = (51, 99) if split == TRANSFER else (1, 50)
        numbers = [rng.randint(low, high) for _ in range(_COUNTS[level])]
        key = " ".join(map(str, sorted(numbers)))
        steps = _combine(rng, numbers)
        if steps is None or not belongs(key, split):
            return None
        target = steps[-1][1]
        wordings = _OTHER_WORDINGS if split == TRANSFER else _WORDINGS
        shown = ", ".join(map(str, numbers))
        return {
            "key": f"{key} {target}",
            "question": rng.choice(wordings).format(numbers=shown, target=target),
            "answer": str(target),
            "numbers": numbers,
            "target": target,
            "expression": steps[-1][0],
            "steps": [f"{shown} = {value}" for _, value, shown in steps],
        }

    def start(self, task: Mapping[str, Any]) -> Episode:
        """Begin a task; it needs `numbers` and `target`, to be shown also `expression`."""
        return _CountdownAttempt(task)


class _CountdownAttempt(Episode):
    def __init__(self, task: Mapping[str, Any]) -> None:
        self._task = task
        self._numbers = [int(number) for number in field_of(task, "numbers", Countdown.name)]
        self._target = int(field_of(task, "target", Countdown.name))
        self._expression: str | None = None
        self._text = ""

    def receive(self, message: Mapping[str, Any]) -> list[Message]:
        """Take the answer."""
        self._expression, self._text = last_line(message), message_text(message)
        return []

    def scores(self) -> dict[str, float]:
        """Return 1 for the target, `VALID` for an expression by the rules, whether it keeps to them, and whether the
        last expression of the whole text that does so reaches the target."""
        value = None if self._expression is None else value_of(self._expression, self._numbers)
        values = (value_of(expression, self._numbers) for expression in reversed(_EXPRESSION.findall(self._text)))
        last = next((one for one in values if one is not None), None)
        return {
            "reward": 1.0 if value == self._target else VALID if value is not None else 0.0,
            "valid": float(value is not None),
            "lenient": float(last == self._target),
        }

    def expert(self) -> Message:
        """Return the operations and the answer; for two numbers also the failed tries."""
        expression = str(field_of(self._task, "expression", Countdown.name))
        steps = [str(step) for step in self._task.get("steps") or ()]
        if len(self._numbers) == 2:
            steps = _tries(self._numbers, expression)
        return assistant("\n".join((*steps, f"Answer: {expression}")))


def _tries(numbers: Sequence[int], expression: str) -> list[str]:
    """Return each operation between two numbers with its result, up to the one that is right."""
    high, low = max(numbers), min(numbers)
    lines = []
    for symbol in _OPERATIONS:
        tried = f"{high}{symbol}{low}"
        value = value_of(tried, numbers)
        if value is not None and value.denominator == 1:
            lines.append(f"{tried} = {value}")
        if tried == expression:
            break
    return lines


def _combine(rng: random.Random, numbers: Sequence[int]) -> list[tuple[str, int, str]] | None:
    """Return operations that use up the numbers: the expression so far, its value, and the operation on its values.

    None where a value on the way is no whole number, or leaves the range of targets.
    """
    parts = [(str(number), number) for number in numbers]
    steps: list[tuple[str, int, str]] = []
    while len(parts) > 1:
        rng.shuffle(parts)
        (first, left), (second, right) = sorted((parts.pop(), parts.pop()), key=lambda part: -part[1])
        symbol = rng.choice("+-*/")
        if symbol == "/" and (right == 0 or left % right):
            return None
        value = int(_OPERATIONS[symbol](Fraction(left), Fraction(right)))
        if not _TARGETS[0] <= value <= _TARGETS[1]:
            return None
        parts.append((f"({first}{symbol}{second})", value))
        steps.append((f"{first}{symbol}{second}", value, f"{left}{symbol}{right}"))
    return steps
