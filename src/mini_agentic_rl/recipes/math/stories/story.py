"""A kind of word problem with its wordings and numbers, and the stories of the split `transfer`."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from importlib.resources import files
from typing import Any, TypeAlias

from ..worked import operations, results

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Operand: TypeAlias = int | Decimal
Draw: TypeAlias = Callable[[random.Random], tuple[Operand, ...]]
_RANGE = re.compile(r"([a-z]) (\d+)-(\d+)")


def read_toml(name: str) -> dict[str, Any]:
    """Return the content of a TOML file of this folder."""
    content: dict[str, Any] = tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))
    return content


NAMES: tuple[str, ...] = tuple(read_toml("scenes.toml")["names"].split())
"""First names."""


@dataclass(frozen=True)
class Problem:
    """A problem with its solution."""

    story: str
    """The text without its numbers and names; two problems of one story differ in nothing else."""
    question: str
    expression: str
    """Expression for the calculator whose value is the answer."""
    level: int
    """Number of operations."""
    thought: str
    """The plan in a few words, without numbers."""


@dataclass(frozen=True)
class Story:
    """One kind of word problem: its wordings, the draw of its numbers, and its expression.

    Operands are named a, b, c, d, e. Each phrasing is a story of its own when splits are made.
    """

    phrasings: tuple[str, ...]
    """Format strings over the operands, `name`, `other` (two different first names) and `item`."""
    items: tuple[str, ...]
    """Plural nouns; one is drawn for `item`."""
    draw: Draw
    """Draws the operands."""
    expression: str
    """Format string over the operands. Its value is the answer: a number with at most two decimal places."""
    thought: str = ""
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


@dataclass(frozen=True)
class IndependentNumbers:
    """Draws integers one after another, and computes the first operand from them if it is not drawn."""

    ranges: tuple[tuple[str, int, int], ...]
    """Letter and bounds, both included; a letter beyond e is used only to compute `first`."""
    first: str
    """Expression of the operand a; empty if it is drawn."""

    def __call__(self, rng: random.Random) -> tuple[Operand, ...]:
        """Return the operands in the order of their letters."""
        drawn = {letter: Fraction(rng.randint(low, high)) for letter, low, high in self.ranges}
        if self.first:
            drawn["a"] = results(operations(self.first), named=drawn)[-1]
        operands = [drawn[letter] for letter in "abcde" if letter in drawn]
        return tuple(
            int(number) if number.denominator == 1 else Decimal(number.numerator) / number.denominator
            for number in operands
        )


def _transfer_story(entry: Mapping[str, str]) -> Story:
    ranges = tuple((letter, int(low), int(high)) for letter, low, high in _RANGE.findall(entry["draws"]))
    return Story((entry["question"],), ("",), IndependentNumbers(ranges, entry.get("a", "")), entry["expression"])


TRANSFER: tuple[Story, ...] = tuple(_transfer_story(entry) for entry in read_toml("transfer.toml")["stories"])
"""Stories that are never trained on; see `transfer.toml`."""
