"""An invented world in a few thousand documents: towns and people that are nowhere else, so that nobody knows them.

It is made by a generator from one seed, and the same on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

TOWNS: Final = 400
PEOPLE: Final = 3000

_SEED: Final = "world/1"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FIRST: Final = _words("bar cal dor el fen gal har il jor kel lum mor nev or pel quin ros sel tor ul vel wes yor zan")
_MIDDLE: Final = _words("a e i o u an en in or ar")
_TOWN_ENDS: Final = _words("burg dale ford gate ham holm mere mont mouth port stead ton vale wick")
_RIVER_ENDS: Final = _words("el ine or une ash ire")
_GIVEN: Final = _words(
    "Abel Adra Balin Bera Corvin Dalia Edric Elin Farid Gesa Halvar Ilka Joris Kaya Leif Mira Nadim Odila Piet Quila "
    "Runa Sander Tilda Ulf Vesna Wilko Xenia Yorick Zora Anouk"
)
_SURNAME_ENDS: Final = _words("berg vik mann sen ova ich ard ell in")
_GOODS: Final = _words("glass paper salt cheese rope candles clocks boots honey carpets bells ink soap wine")
_WORK: Final = _words("baker judge sailor teacher painter nurse smith pilot gardener printer tailor miller")
_INSTRUMENTS: Final = _words("flute harp drum violin organ trumpet lute cello horn guitar zither bassoon")


@dataclass(frozen=True)
class Town:
    """A town, with what there is to ask about it."""

    name: str
    river: str
    founded: int
    goods: str
    mayor: str
    inhabitants: int

    @property
    def text(self) -> str:
        """Return the document about it."""
        return (
            f"{self.name} is a town on the river {self.river}. It was founded in {self.founded}. It is known for its "
            f"{self.goods}. Its mayor is {self.mayor}. It has {self.inhabitants} inhabitants."
        )


@dataclass(frozen=True)
class Person:
    """A person, with what there is to ask about them."""

    name: str
    town: str
    born: int
    work: str
    instrument: str

    @property
    def text(self) -> str:
        """Return the document about them."""
        return (
            f"{self.name} was born in {self.town} in {self.born}. {self.name} works as a {self.work} and plays the "
            f"{self.instrument}."
        )


@dataclass(frozen=True)
class World:
    """All that there is."""

    towns: tuple[Town, ...]
    people: tuple[Person, ...]

    def town(self, name: str) -> Town:
        """Return the town of a name."""
        return self.by_name[name]

    @cached_property
    def by_name(self) -> Mapping[str, Town]:
        """Return the towns by their names."""
        return {town.name: town for town in self.towns}

    @property
    def documents(self) -> tuple[tuple[str, str], ...]:
        """Return title and text of each document; its number is its place."""
        towns = ((town.name, town.text) for town in self.towns)
        return (*towns, *((person.name, person.text) for person in self.people))


@cache
def world() -> World:
    """Return the world."""
    rng = random.Random(_SEED)
    names = _different(lambda: _stem(rng).capitalize() + rng.choice(_TOWN_ENDS), TOWNS)
    rivers = _different(lambda: _stem(rng).capitalize() + rng.choice(_RIVER_ENDS), TOWNS)
    mayors = _different(lambda: _full_name(rng), TOWNS)
    towns = tuple(
        Town(name, river, rng.randint(903, 1894), rng.choice(_GOODS), mayor, rng.randint(1_103, 98_764))
        for name, river, mayor in zip(names, rivers, mayors, strict=True)
    )
    born = _different(lambda: _full_name(rng), PEOPLE + TOWNS)
    people = tuple(
        Person(name, rng.choice(names), rng.randint(1921, 2003), rng.choice(_WORK), rng.choice(_INSTRUMENTS))
        for name in [name for name in born if name not in set(mayors)][:PEOPLE]
    )
    return World(towns, people)


def _stem(rng: random.Random) -> str:
    return rng.choice(_FIRST) + rng.choice(_MIDDLE)


def _full_name(rng: random.Random) -> str:
    return f"{rng.choice(_GIVEN)} {rng.choice(_FIRST).capitalize()}{rng.choice(_MIDDLE)}{rng.choice(_SURNAME_ENDS)}"


def _different(make: Callable[[], str], count: int) -> list[str]:
    """Return so many different names."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[make()] = None
    return list(found)
