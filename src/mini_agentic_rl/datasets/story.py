"""What a story of an arithmetic problem consists of, and how its numbers are drawn.

A `Story` keeps four things in step: its phrasings, the draw of its operands, the expression that a calculator needs and
the same calculation in Python. Operands are named a, b, c, d in the order in which they are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

Operand: TypeAlias = int | Decimal
Draw: TypeAlias = Callable[[random.Random], tuple[Operand, ...]]


@dataclass(frozen=True)
class Story:
    """One kind of word problem."""

    level: int
    """1 one operation · 2 a large product or quotient · 3 two operations · 4 three operations."""
    phrasings: tuple[str, ...]
    """Format strings over the operands, `name`, `other` (two different first names) and `item`."""
    items: tuple[str, ...]
    """Plural nouns; one is drawn for `item`."""
    draw: Draw
    """Operands from a random generator."""
    expression: str
    """Format string over the operands: what to type into a calculator."""
    solve: Callable[..., Any]
    """The answer from the operands: an int, or a Decimal with at most two decimal places."""
    thought: str
    """The plan in a few words, without numbers."""


def numbers(*ranges: tuple[int, int]) -> Draw:
    """Independent integers, each between its two bounds, both included."""
    return lambda rng: tuple(rng.randint(low, high) for low, high in ranges)


def larger_first(first: tuple[int, int], *rest: tuple[int, int]) -> Draw:
    """Integers of which the first exceeds the sum of the others, given bounds that make it so."""
    if first[0] <= sum(high for _, high in rest):
        raise ValueError("the first range has to lie above the sum of the others")
    return numbers(first, *rest)


def priced(price: tuple[int, int], *rest: tuple[int, int]) -> Draw:
    """A price in dollars and cents (bounds in cents), then integers."""

    def draw(rng: random.Random) -> tuple[Operand, ...]:
        return Decimal(rng.randint(*price)) / 100, *(rng.randint(low, high) for low, high in rest)

    return draw


def divisible(quotient: tuple[int, int], divisor: tuple[int, int], *rest: tuple[int, int]) -> Draw:
    """A dividend and a divisor that divides it, then integers."""

    def draw(rng: random.Random) -> tuple[Operand, ...]:
        by = rng.randint(*divisor)
        return rng.randint(*quotient) * by, by, *(rng.randint(low, high) for low, high in rest)

    return draw
