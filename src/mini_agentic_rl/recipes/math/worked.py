"""Worked solutions of arithmetic problems (plan, a line per operation, answer), and corrupted ones for preferences."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, TypeAlias

from ...rewards import is_correct, parse_number, plain_number

SYMBOLS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPUTE: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_MARK = re.compile(r"<<[^<>]*>>")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Operation:
    """One operation. An operand is a number of the problem, the index of an earlier operation, or the name of a
    number."""

    symbol: str
    left: Fraction | int | str
    right: Fraction | int | str


@dataclass(frozen=True)
class Worked:
    """A solution, right or wrong."""

    lines: tuple[str, ...]
    answer: str

    @property
    def text(self) -> str:
        """Return the reply of a model."""
        return "\n".join((*self.lines, f"Answer: {self.answer}"))


def worked_solution(row: Mapping[str, Any]) -> Worked:
    """Return the solution of a row, from its `expression`, else from its `solution`, else only the answer.

    GSM8K's calculator marks "<<48/2=24>>" and its last line "#### 42" are left out.
    """
    answer = str(row["answer"])
    if row.get("expression"):
        return Worked((*plan_of(row), *working(operations(str(row["expression"])))), answer)
    text = str(row.get("solution", ""))
    kept = (_MARK.sub("", line).strip() for line in text.rpartition("####")[0].splitlines())
    return Worked(tuple(line for line in kept if line), answer)


def plan_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the line with the plan, if the row has one."""
    return (str(row["thought"]),) if row.get("thought") else ()


def operations(expression: str) -> list[Operation]:
    """Return the distinct operations of an expression over numbers and names, in the order of computation.

    Raises:
        ValueError: it has anything but numbers, names, + - * / and parentheses, or no operation.
    """
    steps: list[Operation] = []

    def visit(node: ast.expr) -> Fraction | int | str:
        if isinstance(node, ast.BinOp) and type(node.op) in SYMBOLS:
            left, right = visit(node.left), visit(node.right)
            step = Operation(SYMBOLS[type(node.op)], left, right)
            if step not in steps:
                steps.append(step)
            return steps.index(step)
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return Fraction(str(node.value))
        if isinstance(node, ast.Name):
            return node.id
        raise ValueError(f"{expression!r} is no expression over numbers")

    visit(ast.parse(expression, mode="eval").body)
    if not steps:
        raise ValueError(f"{expression!r} has no operation")
    return steps


def as_told(steps: Sequence[Operation], question: str) -> list[Operation]:
    """Return the operations with the operands of sums and products in a fixed order: results, then numbers in the order
    of the question.

    A model could not learn an order that is chosen freely.
    """
    # From the end, so that the first position of a repeated number remains.
    place: dict[Fraction | str, int] = {
        Fraction(match[0]): match.start() for match in reversed(list(NUMBER.finditer(question)))
    }

    def order(side: Fraction | int | str) -> int:
        return side - len(steps) if isinstance(side, int) else place.get(side, len(question))

    return [
        Operation(step.symbol, step.right, step.left)
        if step.symbol in "+*" and order(step.right) < order(step.left)
        else step
        for step in steps
    ]


def results(
    steps: Sequence[Operation],
    slips: Mapping[int, Fraction] | None = None,
    named: Mapping[str, Fraction] = MappingProxyType({}),
) -> list[Fraction]:
    """Return the result of each operation.

    Args:
        slips: wrong results by index of the operation; later operations use them.
        named: numbers by name.

    Raises:
        ZeroDivisionError: a division by zero.
    """
    values: list[Fraction] = []
    for place, step in enumerate(steps):
        value = _COMPUTE[step.symbol](operand(step.left, values, named), operand(step.right, values, named))
        values.append((slips or {}).get(place, value))
    return values


def working(steps: Sequence[Operation], slips: Mapping[int, Fraction] | None = None) -> tuple[str, ...]:
    """Return a line for each operation, such as "12 * 30 = 360".

    Raises:
        ZeroDivisionError: a division by zero.
    """
    values = results(steps, slips)

    def shown(side: Fraction | int | str) -> str:
        return plain_number(operand(side, values))

    return tuple(
        f"{shown(step.left)} {step.symbol} {shown(step.right)} = {plain_number(value)}"
        for step, value in zip(steps, values, strict=True)
    )


def operand(
    given: Fraction | int | str, values: Sequence[Fraction], named: Mapping[str, Fraction] = MappingProxyType({})
) -> Fraction:
    """Return the number of an operand, given the results so far and the numbers by name."""
    if isinstance(given, str):
        return named[given]
    return values[given] if isinstance(given, int) else given


# Corrupted solutions for preferences: each is a right solution with one error. A corruption is a function of a random
# generator and a `Case`, and returns None where it does not apply. Those of `WRONG` change the answer; those of `UNFIT`
# give no single answer in the required form.


_SWAPPED = {"+": "-", "-": "+", "*": "+", "/": "*"}
_EVASIONS = (
    "I am not sure. It depends on the details.",
    "That is hard to say without a calculator.",
    "This is a nice problem. Let me know if you need anything else!",
    "The question cannot be answered with what is given.",
)
_FINAL_NUMBER = re.compile(r"(?<![\d.,])-?\$?\d[\d,]*(?:\.\d+)?(?!.*\d)", re.DOTALL)


@dataclass(frozen=True)
class Case:
    """A problem, its right solution, and the solution of another problem."""

    row: Mapping[str, Any]
    right: Worked
    other: Worked

    @property
    def steps(self) -> list[Operation]:
        """Return the operations of the solution; none if the row has no expression."""
        expression = self.row.get("expression")
        return operations(str(expression)) if expression else []


Corruption: TypeAlias = Callable[[random.Random, Case], str | None]


def wrong_operation(rng: random.Random, case: Case) -> str | None:
    """Replace one operation by another, and recompute the rest."""
    steps = case.steps
    if not steps:
        return None
    place = rng.randrange(len(steps))
    step = steps[place]
    steps[place] = Operation(_SWAPPED[step.symbol], step.left, step.right)
    return _recomputed(case, steps)


def misread_number(rng: random.Random, case: Case) -> str | None:
    """Change one digit of a number of the problem, and recompute the rest."""
    steps = case.steps
    places = [(place, side) for place, step in enumerate(steps) for side in ("left", "right")
              if isinstance(getattr(step, side), Fraction)]  # fmt: skip
    if not places:
        return None
    place, side = rng.choice(places)
    step = steps[place]
    left, right = (
        _misread(rng, value) if name == side and isinstance(value, Fraction) else value
        for name, value in (("left", step.left), ("right", step.right))
    )
    steps[place] = Operation(step.symbol, left, right)
    return _recomputed(case, steps)


def calculation_slip(rng: random.Random, case: Case) -> str | None:
    """Change one digit of a result, and recompute the rest."""
    steps = case.steps
    if not steps:
        return _slip_in_text(rng, case)
    place = rng.randrange(len(steps))
    return _recomputed(case, steps, {place: _misread(rng, results(steps)[place])})


def wrong_final_answer(rng: random.Random, case: Case) -> str | None:
    """Keep the working, and change the answer."""
    number = parse_number(case.right.answer)
    return None if number is None else Worked(case.right.lines, plain_number(_misread(rng, number.value))).text


def unfinished(rng: random.Random, case: Case) -> str | None:
    """Leave out the last steps, and give an intermediate result as the answer."""
    steps = case.steps
    if len(steps) < 2:
        return None
    kept = steps[: rng.randrange(1, len(steps))]
    values = results(kept)
    return Worked((*plan_of(case.row), *working(kept)), plain_number(values[-1])).text


def off_topic(rng: random.Random, case: Case) -> str | None:
    """Return the solution of another problem."""
    return case.other.text


def no_answer(rng: random.Random, case: Case) -> str | None:
    """Stop before the answer."""
    lines = case.right.lines[: max(1, len(case.right.lines) - rng.randrange(1, 3))]
    return "\n".join(lines) if lines and lines != case.right.lines else None


def contradictory(rng: random.Random, case: Case) -> str | None:
    """Give two different answers."""
    number = parse_number(case.right.answer)
    if number is None:
        return None
    other = plain_number(_misread(rng, number.value))
    return f"{case.right.text}\nNo, wait.\nAnswer: {other}"


def evasive(rng: random.Random, case: Case) -> str | None:
    """Return an evasive reply."""
    return rng.choice(_EVASIONS)


def rambling(rng: random.Random, case: Case) -> str | None:
    """Repeat one line, without an answer."""
    line = rng.choice(case.right.lines) if case.right.lines else "Let me think."
    return "\n".join((*case.right.lines[:1], *[line] * rng.randrange(5, 9)))


WRONG: dict[str, Corruption] = {
    "wrong_operation": wrong_operation,
    "misread_number": misread_number,
    "calculation_slip": calculation_slip,
    "wrong_final_answer": wrong_final_answer,
    "unfinished": unfinished,
    "off_topic": off_topic,
}
UNFIT: dict[str, Corruption] = {
    "no_answer": no_answer,
    "contradictory": contradictory,
    "evasive": evasive,
    "rambling": rambling,
}
CORRUPTIONS: dict[str, Corruption] = WRONG | UNFIT


def corrupted(rng: random.Random, case: Case) -> tuple[str, str]:
    """Return a corrupted solution and the name of the corruption, drawn uniformly from those that apply."""
    for name in rng.sample(list(CORRUPTIONS), len(CORRUPTIONS)):
        text = CORRUPTIONS[name](rng, case)
        if text is None or text == case.right.text:
            continue
        if name not in WRONG or not text.endswith(f"Answer: {case.right.answer}"):
            return text, name
    raise ValueError(f"row {case.row.get('id')!r} has no place for any corruption")


def _recomputed(case: Case, steps: list[Operation], slips: Mapping[int, Fraction] | None = None) -> str | None:
    try:
        values = results(steps, slips)
        lines = working(steps, slips)
    except ZeroDivisionError:
        return None
    if any(value.denominator not in (1, 2, 4, 5, 10, 20, 25, 50, 100) for value in values):
        return None
    if is_correct(plain_number(values[-1]), case.right.answer):  # within the tolerance of the right answer
        return None
    return Worked((*plan_of(case.row), *lines), plain_number(values[-1])).text


def _misread(rng: random.Random, value: Fraction) -> Fraction:
    """Return the number with one digit changed; the first digit does not become 0."""
    text = plain_number(value)
    places = [at for at, character in enumerate(text) if character.isdigit()]
    at = rng.choice(places)
    leading = at == places[0] and len(places) > 1
    digits = [digit for digit in "0123456789" if digit != text[at] and not (leading and digit == "0")]
    return Fraction(text[:at] + rng.choice(digits) + text[at + 1 :])


def _slip_in_text(rng: random.Random, case: Case) -> str | None:
    """Change one digit of the answer, also in the last line of the working."""
    number = parse_number(case.right.answer)
    if number is None or not case.right.lines:
        return None
    wrong = plain_number(_misread(rng, number.value))
    last = _FINAL_NUMBER.sub(wrong, case.right.lines[-1], count=1)
    return Worked((*case.right.lines[:-1], last), wrong).text
