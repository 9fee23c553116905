"""Stories written as a whole: each keeps its phrasings, the draw of its numbers, and the expression in step.

Operands are named a, b, c, d, e in the order in which they are drawn. Each phrasing is a story of its own where splits
are told apart.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from .problem import NAMES, Operand, Problem

Draw: TypeAlias = Callable[[random.Random], tuple[Operand, ...]]


@dataclass(frozen=True)
class Story:
    """One kind of word problem."""

    phrasings: tuple[str, ...]
    """Format strings over the operands, `name`, `other` (two different first names) and `item`."""
    items: tuple[str, ...]
    """Plural nouns; one is drawn for `item`."""
    draw: Draw
    """Operands from a random generator."""
    expression: str
    """Format string over the operands, not necessarily all: what to type into a calculator. Its value is the answer: an
    integer, or a number with at most two decimal places."""
    thought: str
    """The plan in a few words, without numbers."""

    @property
    def level(self) -> int:
        """The number of operations."""
        return len(re.findall(r"[-+*/]", self.expression))

    def tell(self, words: random.Random, numbers: random.Random) -> Problem:
        """Return the story with a phrasing, names and things drawn from `words`, and with numbers."""
        phrasing, item = words.choice(self.phrasings), words.choice(self.items)
        name, other = words.sample(NAMES, 2)
        values = dict(zip("abcde", self.draw(numbers), strict=False))
        question = phrasing.format(name=name, other=other, item=item, **values)
        return Problem(phrasing, question, self.expression.format(**values), self.level, self.thought)


def told(draw: Draw, expression: str, thought: str, *phrasings: str) -> Story:
    """Return a story that names its things in its phrasings."""
    return Story(phrasings, ("",), draw, expression, thought)


def numbers(*ranges: tuple[int, int]) -> Draw:
    """Return independent integers, each between its two bounds, both included."""
    return lambda rng: tuple(rng.randint(low, high) for low, high in ranges)


def larger_first(first: tuple[int, int], *rest: tuple[int, int]) -> Draw:
    """Return integers of which the first exceeds the sum of the others, given bounds that make it so."""
    if first[0] <= sum(high for _, high in rest):
        raise ValueError("the first range has to lie above the sum of the others")
    return numbers(first, *rest)


def priced(price: tuple[int, int], *rest: tuple[int, int]) -> Draw:
    """Return a price in dollars and cents (bounds in cents), then integers."""

    def draw(rng: random.Random) -> tuple[Operand, ...]:
        return Decimal(rng.randint(*price)) / 100, *(rng.randint(low, high) for low, high in rest)

    return draw


def divisible(quotient: tuple[int, int], divisor: tuple[int, int], *rest: tuple[int, int]) -> Draw:
    """Return a dividend and a divisor that divides it, then integers."""

    def draw(rng: random.Random) -> tuple[Operand, ...]:
        by = rng.randint(*divisor)
        return rng.randint(*quotient) * by, by, *(rng.randint(low, high) for low, high in rest)

    return draw


def multiples(by: int, first: tuple[int, int], *rest: tuple[int, int]) -> Draw:
    """Return a multiple of `by` (bounds of how many times), then integers."""

    def draw(rng: random.Random) -> tuple[Operand, ...]:
        return rng.randint(*first) * by, *(rng.randint(low, high) for low, high in rest)

    return draw


def with_rest(parts: tuple[int, int], share: tuple[int, int], rest: tuple[int, int]) -> Draw:
    """Return an amount, a rest, and the number of equal parts that divides the amount without the rest."""

    def draw(rng: random.Random) -> tuple[Operand, ...]:
        count, left = rng.randint(*parts), rng.randint(*rest)
        return count * rng.randint(*share) + left, left, count

    return draw
