"""A kind of word problem with its wordings and numbers, and the stories that are written as a whole.

`texts/` has the stories of training; add lines there to add stories. A file has kinds of problems. The first line of a
kind has its expression, the ranges of its numbers, the plan in words, and optionally things to name; its wordings
follow, one per line. Lines that begin with "#" are comments:

    == a*b+c | a 12-98, b 1.05-9.95, c 120-960 by 10 | Multiply, then add the rest. | things: pens, brushes
    {name} buys {a} {item} for {b} dollars each and a bag for {c} dollars. What is to be paid?

Numbers are drawn between their bounds, both included, in steps of 1, of 0.01 for a price, or of the number after "by",
until each operation gives a number above 1 that is whole, or for money has at most two decimal places.

`transfer.toml` has the stories of the split `transfer`.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from importlib.resources import files
from typing import Any, TypeAlias

from ..worked import Operation, operations, results

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


# Stories in the text files of `texts/`


_KIND = re.compile(r"== *([^|]+?) *\| *([^|]+?) *\| *([^|]+?)(?: *\| things: ([^|]+))?")
_RANGE_OF_PRICES = re.compile(r"([a-e]) (\d+(?:\.\d\d)?)-(\d+(?:\.\d\d)?)(?: by (\d+))?")
_FIELD = re.compile(r"{([^{}]*)}")
_LETTER = re.compile(r"[a-e]")
_MAX_DRAWS = 20_000
"""Draws of numbers before an error."""


@dataclass(frozen=True)
class NumberRange:
    """The range of one operand of a story."""

    letter: str
    low: Decimal
    high: Decimal
    step: Decimal

    @classmethod
    def parse(cls, text: str) -> NumberRange:
        """Read "a 12-98", "b 1.05-9.95" or "c 120-960 by 10".

        Raises:
            ValueError: it is none of these.
        """
        match = _RANGE_OF_PRICES.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text.strip()!r} is no range of numbers, as in 'a 12-98'")
        letter, low, high, step = match.groups()
        price = "." in low
        return cls(letter, Decimal(low), Decimal(high), Decimal("0.01") if price else Decimal(step or 1))

    @property
    def is_price(self) -> bool:
        """Return True if the numbers have two decimal places."""
        return self.step < 1

    def draw(self, rng: random.Random) -> Operand:
        """Draw a number uniformly."""
        number = self.low + self.step * rng.randint(0, int((self.high - self.low) / self.step))
        return number if self.is_price else int(number)


@dataclass(frozen=True)
class FittingNumbers:
    """Draws numbers with which every step of an expression is above 1 and has no more decimals than its operands."""

    expression: str
    """Expression over the letters of the ranges."""
    ranges: tuple[NumberRange, ...]

    def __call__(self, rng: random.Random) -> tuple[Operand, ...]:
        """Return one number for each range.

        Raises:
            ValueError: no fitting numbers were found.
        """
        for _ in range(_MAX_DRAWS):
            drawn = tuple(number_range.draw(rng) for number_range in self.ranges)
            if self._fit(drawn):
                return drawn
        raise ValueError(f"no numbers between these bounds fit {self.expression!r}")

    def _fit(self, drawn: Sequence[Operand]) -> bool:
        given = {each.letter: Fraction(number) for each, number in zip(self.ranges, drawn, strict=True)}
        try:
            values = results(self._steps, named=given)
        except ZeroDivisionError:
            return False
        return all(
            value > 1 and (value * (100 if amount else 1)).denominator == 1
            for value, amount in zip(values, self._amounts, strict=True)
        )

    @cached_property
    def _steps(self) -> list[Operation]:
        return operations(self.expression)

    @cached_property
    def _amounts(self) -> list[bool]:
        """Return for each operation whether its result is an amount of money, which may have cents."""
        prices = {each.letter: each.is_price for each in self.ranges}
        amounts: list[bool] = []
        for step in self._steps:
            left, right = (
                amounts[side] if isinstance(side, int) else prices.get(str(side), False)
                for side in (step.left, step.right)
            )
            amounts.append(left and not right if step.symbol == "/" else left or right)
        return amounts


def read_written() -> tuple[Story, ...]:
    """Return all stories of `texts/`, file after file by name."""
    texts = sorted(files(__package__).joinpath("texts").iterdir(), key=lambda file: file.name)
    return tuple(story for text in texts for story in parse(text.read_text(encoding="utf-8"), text.name))


def parse(text: str, name: str) -> Iterator[Story]:
    """Yield a story for each kind of problem in a text, with its wordings.

    Raises:
        ValueError: a line cannot be read, or a wording does not have exactly the numbers of its kind; the message has
            `name` and the line.
    """
    kind: re.Match[str] | None = None
    wordings: list[str] = []
    for place, line in enumerate(text.splitlines(), start=1):
        try:
            if line.startswith("=="):
                if kind is not None:
                    yield _story(kind, wordings)
                kind, wordings = _KIND.fullmatch(line), []
                if kind is None:
                    raise ValueError("a kind of problem is '== a+b | a 12-98, b 13-97 | The plan.'")
            elif line and not line.startswith("#"):
                wordings.append(_checked(line, kind))
        except ValueError as error:
            raise ValueError(f"{name}, line {place}: {error}") from error
    if kind is not None:
        yield _story(kind, wordings)


def _checked(wording: str, kind: re.Match[str] | None) -> str:
    if kind is None:
        raise ValueError("a wording needs a line with its kind above it")
    wanted = {each.letter for each in _ranges(kind[2])}
    named = set(_FIELD.findall(wording)) - ({"name", "other"} if kind[4] is None else {"name", "other", "item"})
    if named != wanted:
        raise ValueError(f"the wording has {sorted(named)}, its kind {sorted(wanted)}")
    return wording


def _story(kind: re.Match[str], wordings: Sequence[str]) -> Story:
    expression, ranges, thought, things = kind.groups()
    ranges_of = _ranges(ranges)
    if not wordings or not set(_LETTER.findall(expression)) <= {each.letter for each in ranges_of}:
        raise ValueError(f"{expression!r} lacks wordings, or ranges of its numbers")
    draw = FittingNumbers(expression, ranges_of)
    items = tuple(thing.strip() for thing in (things or "").split(","))
    return Story(
        tuple(wordings), items, draw, _LETTER.sub(lambda letter: f"{{{letter[0]}}}", expression), thought.strip()
    )


def _ranges(text: str) -> tuple[NumberRange, ...]:
    ranges = tuple(NumberRange.parse(part) for part in text.split(","))
    if [each.letter for each in ranges] != list("abcde"[: len(ranges)]):
        raise ValueError(f"the numbers of {text!r} are to be a, b, c and so on, in this order")
    return ranges
