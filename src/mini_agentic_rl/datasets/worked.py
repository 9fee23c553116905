"""Worked solutions of arithmetic problems: the plan, one line for each operation, the answer."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..rewards import plain_number

SYMBOLS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPUTE: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_MARK = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True)
class Operation:
    """One operation. An operand is a number of the problem, or the place of the earlier operation that gave it."""

    symbol: str
    left: Fraction | int
    right: Fraction | int


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
    """Return the operations of an expression over numbers, in the order in which they are computed.

    Raises:
        ValueError: it holds something else than numbers, + - * / and parentheses, or no operation.
    """
    found: list[Operation] = []

    def visit(node: ast.expr) -> Fraction | int:
        if isinstance(node, ast.BinOp) and type(node.op) in SYMBOLS:
            left, right = visit(node.left), visit(node.right)
            found.append(Operation(SYMBOLS[type(node.op)], left, right))
            return len(found) - 1
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return Fraction(str(node.value))
        raise ValueError(f"{expression!r} is no expression over numbers")

    visit(ast.parse(expression, mode="eval").body)
    if not found:
        raise ValueError(f"{expression!r} has no operation")
    return found


def results(steps: Sequence[Operation], slips: Mapping[int, Fraction] | None = None) -> list[Fraction]:
    """Return the result of each operation. `slips` replaces the results at some places; what builds on them follows.

    Raises:
        ZeroDivisionError: a division by zero.
    """
    values: list[Fraction] = []
    for place, step in enumerate(steps):
        value = _COMPUTE[step.symbol](operand(step.left, values), operand(step.right, values))
        values.append((slips or {}).get(place, value))
    return values


def working(steps: Sequence[Operation], slips: Mapping[int, Fraction] | None = None) -> tuple[str, ...]:
    """Return a line for each operation, as in "12 * 30 = 360".

    Raises:
        ZeroDivisionError: a division by zero.
    """
    values = results(steps, slips)

    def shown(side: Fraction | int) -> str:
        return plain_number(operand(side, values))

    return tuple(
        f"{shown(step.left)} {step.symbol} {shown(step.right)} = {plain_number(value)}"
        for step, value in zip(steps, values, strict=True)
    )


def operand(given: Fraction | int, values: Sequence[Fraction]) -> Fraction:
    """Return the number that an operand stands for, with the results so far."""
    return values[given] if isinstance(given, int) else given
