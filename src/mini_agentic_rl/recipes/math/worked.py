"""Worked solutions of arithmetic problems: the plan, one line for each operation, the answer."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from ...rewards import plain_number

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
    """One operation. An operand is a number of the problem, the place of the earlier operation that gave it, or a
    name that stands for a number."""

    symbol: str
    left: Fraction | int | str
    right: Fraction | int | str


@dataclass(frozen=True)
class Worked:
    """A solution, right or not."""

    lines: tuple[str, ...]
    """The working."""
    answer: str

    @property
    def text(self) -> str:
        """As a model is to write it."""
        return "\n".join((*self.lines, f"Answer: {self.answer}"))


def worked_solution(row: Mapping[str, Any]) -> Worked:
    """Return the solution of a row: step by step where it has an `expression`, else out of its `solution`, else the
    answer.

    "<<48/2=24>>" in a solution, GSM8K's mark for a calculator, and its last line "#### 42" are left out.
    """
    answer = str(row["answer"])
    if row.get("expression"):
        return Worked((*plan_of(row), *working(operations(str(row["expression"])))), answer)
    text = str(row.get("solution", ""))
    kept = (_MARK.sub("", line).strip() for line in text.rpartition("####")[0].splitlines())
    return Worked(tuple(line for line in kept if line), answer)


def plan_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the line that says what to do, where the row has one."""
    return (str(row["thought"]),) if row.get("thought") else ()


def operations(expression: str) -> list[Operation]:
    """Return the operations of an expression over numbers and names, in the order in which they are computed, each once
    however often its result is used.

    Raises:
        ValueError: it holds something else than numbers, names, + - * / and parentheses, or no operation.
    """
    found: list[Operation] = []

    def visit(node: ast.expr) -> Fraction | int | str:
        if isinstance(node, ast.BinOp) and type(node.op) in SYMBOLS:
            left, right = visit(node.left), visit(node.right)
            step = Operation(SYMBOLS[type(node.op)], left, right)
            if step not in found:
                found.append(step)
            return found.index(step)
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return Fraction(str(node.value))
        if isinstance(node, ast.Name):
            return node.id
        raise ValueError(f"{expression!r} is no expression over numbers")

    visit(ast.parse(expression, mode="eval").body)
    if not found:
        raise ValueError(f"{expression!r} has no operation")
    return found


def as_told(steps: Sequence[Operation], question: str) -> list[Operation]:
    """Return the operations with the sides of sums and products in one order: results, then numbers as they are told.

    Which side comes first changes no result, and is nothing that a model could learn where it is chosen freely.
    """
    # From the back, so that of a number that is told twice the first place stays.
    place: dict[Fraction | str, int] = {
        Fraction(found[0]): found.start() for found in reversed(list(NUMBER.finditer(question)))
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
        slips: replaces the results at some places; what builds on them follows.
        named: what the names stand for.

    Raises:
        ZeroDivisionError: a division by zero.
    """
    values: list[Fraction] = []
    for place, step in enumerate(steps):
        value = _COMPUTE[step.symbol](operand(step.left, values, named), operand(step.right, values, named))
        values.append((slips or {}).get(place, value))
    return values


def working(steps: Sequence[Operation], slips: Mapping[int, Fraction] | None = None) -> tuple[str, ...]:
    """Return a line for each operation, as in "12 * 30 = 360".

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
    """Return the number that an operand stands for, with the results so far and what names stand for."""
    if isinstance(given, str):
        return named[given]
    return values[given] if isinstance(given, int) else given
