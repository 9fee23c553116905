"""Retrieval: questions about an invented world, whose documents the tools `search` and `read` return.

It tests search, not memory: no model has read about these towns and people.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Final

from ...datasets import TRANSFER, Message, Row, assistant
from ...environments import Episode, Episodes, ToolEpisode, belongs, field_of, plain, tool_call
from ...tools import text_tool

K1: Final = 1.2
"""Term frequency saturation of BM25."""
B: Final = 0.75
"""Document length normalisation of BM25."""
MAX_WORDS: Final = 32
"""Words of a query that are used."""

_WORD: Final = re.compile(r"\w+")


class Index:
    """A search index with BM25 scores (Robertson and Zaragoza 2009, equation 3.15)."""

    def __init__(self, documents: Sequence[str]) -> None:
        counts = [Counter(words_of(text)) for text in documents]
        average = sum(count.total() for count in counts) / max(1, len(counts))
        within = Counter(word for count in counts for word in count)
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for place, count in enumerate(counts):
            norm = K1 * (1 - B + B * count.total() / max(1.0, average))
            for word, times in count.items():
                weight = math.log(1 + (len(counts) - within[word] + 0.5) / (within[word] + 0.5))
                self._postings.setdefault(word, []).append((place, weight * times * (K1 + 1) / (times + norm)))

    def search(self, query: str, count: int) -> list[int]:
        """Return the indices of at most `count` documents with words of the query, best first."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(words_of(query)[:MAX_WORDS]):
            for place, score in self._postings.get(word, ()):
                scores[place] = scores.get(place, 0.0) + score
        return sorted(scores, key=lambda place: (-scores[place], place))[:count]


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return [word.casefold() for word in _WORD.findall(text)]


# The invented world is generated from one seed, and is the same on every machine.

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
    """A town and its facts."""

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
    """A person and their facts."""

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
    """All towns and people."""

    towns: tuple[Town, ...]
    people: tuple[Person, ...]

    @cached_property
    def towns_by_name(self) -> Mapping[str, Town]:
        """Return the towns by name."""
        return {town.name: town for town in self.towns}

    @property
    def documents(self) -> tuple[tuple[str, str], ...]:
        """Return title and text of each document, in the order of their numbers."""
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
    """Return `count` different names."""
    names: dict[str, None] = {}
    while len(names) < count:
        names[make()] = None
    return list(names)


SEARCH_TOOL: Final = text_tool("search", "Find documents by words. Gives their numbers and titles.", "query")
READ_TOOL: Final = text_tool("read", "Read the document of a number.", "document", "integer")
FOUND: Final = 3
"""Documents that a search returns."""

_PLACE: Final = re.compile("[0-9]{1,6}")

_TOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "river": ("On which river is {name}?", "Which river flows through {name}?"),
    "founded": ("In which year was {name} founded?", "When was {name} founded?"),
    "goods": ("What is {name} known for?", "Which goods is {name} known for?"),
    "mayor": ("Who is the mayor of {name}?", "What is the name of the mayor of {name}?"),
}
_PERSON: Final[Mapping[str, tuple[str, ...]]] = {
    "town": ("In which town was {name} born?", "Where was {name} born?"),
    "born": ("In which year was {name} born?", "When was {name} born?"),
    "work": ("What is the work of {name}?", "What does {name} work as?"),
}
_OTHER_TOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "inhabitants": ("How many people live in {name}?",),
    "founded": ("How far back does {name} go? Give the year.",),
    "river": ("Name the water that {name} lies at.",),
}
_OTHER_PERSON: Final[Mapping[str, tuple[str, ...]]] = {
    "instrument": ("Which instrument does {name} play?",),
    "work": ("How does {name} earn a living?",),
    "town": ("{name} comes from a town. Which one?",),
}


class Retrieval(Episodes):
    """Level 1 needs one document, level 2 a second one that the first names, level 3 finds a person by work and town,
    level 4 compares two towns. `transfer` has other wordings and asks for other facts."""

    name: ClassVar[str] = "retrieval"
    prompt: ClassVar[str] = (
        "Answer from the documents: search, read what you found, and search on where it names another. "
        'Then reply "Answer: ..." with the answer alone.'
    )
    tools: ClassVar[list[dict[str, Any]]] = [SEARCH_TOOL, READ_TOOL]
    max_turns: ClassVar[int] = 7
    max_new_tokens: ClassVar[int] = 48

    def draw(self, rng: random.Random, split: str, level: int) -> Row | None:
        """Return a question, its answer, and the queries of the expert."""
        there = world()
        person, town = rng.choice(there.people), rng.choice(there.towns)
        subject: Town | Person = person if level in (2, 3) else town if level == 4 else rng.choice((person, town))
        if not belongs(subject.name, split):
            return None
        wordings = (_OTHER_TOWN, _OTHER_PERSON) if split == TRANSFER else (_TOWN, _PERSON)
        row: Row | None
        if level == 1:
            row = _about(rng, subject, subject.name, wordings, [subject.name])
        elif level == 2:
            home = there.towns_by_name[person.town]
            called = f"the town where {person.name} was born"
            row = _about(rng, home, called, wordings, [person.name, home.name])
        elif level == 3:
            row = _described(rng, person, there, transfer=split == TRANSFER)
        else:
            other = rng.choice([place for place in there.towns if place.founded != town.founded])
            row = _older(town, other, transfer=split == TRANSFER)
        if row is None:
            return None
        return {"key": row["question"], **row}

    def start(self, task: Mapping[str, Any]) -> Episode:
        """Begin a task; it needs `answer`, and for the expert `searches`."""
        return _Search(task)


class _Search(ToolEpisode):
    def __init__(self, task: Mapping[str, Any]) -> None:
        super().__init__({"search": ("query", search), "read": ("document", read)})
        self._task = task
        self._gold = plain(str(field_of(task, "answer", Retrieval.name)))

    def is_right(self, answer: str) -> bool:
        """Return True if the answer is right, apart from case and thousands commas."""
        return plain(answer) == self._gold

    def expert(self) -> Message:
        """Return the next search, the read of its first document, or the answer."""
        searches = [str(query) for query in field_of(self._task, "searches", Retrieval.name)]
        done = len(self.used)
        if done >= 2 * len(searches):
            return assistant(f"Answer: {self._task['answer']}")
        if done % 2 == 0:
            return tool_call(done + 1, "search", query=searches[done // 2])
        return tool_call(done + 1, "read", document=int(self.results[-1].partition(":")[0]))


def search(query: str) -> str:
    """Return number and title of the best documents for a query, one per line, or "error: …"."""
    index, documents = _library()
    places = index.search(query, FOUND)
    return "\n".join(f"{place + 1}: {documents[place][0]}" for place in places) or "error: nothing was found"


def read(number: str) -> str:
    """Return the text of a document by its number, or "error: …"."""
    _, documents = _library()
    number = number.strip()
    if not _PLACE.fullmatch(number) or not 1 <= int(number) <= len(documents):
        return f"error: no document {number[:20]}"
    return documents[int(number) - 1][1]


@cache
def _library() -> tuple[Index, tuple[tuple[str, str], ...]]:
    documents = world().documents
    return Index([f"{title} {text}" for title, text in documents]), documents


def _about(
    rng: random.Random,
    subject: Town | Person,
    called: str,
    wordings: tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]]],
    searches: list[str],
) -> Row:
    """Return a question about a town or person, which it names `called`."""
    of_kind = wordings[0] if isinstance(subject, Town) else wordings[1]
    fact = rng.choice(sorted(of_kind))
    question = rng.choice(of_kind[fact]).format(name=called)
    return {"question": question, "answer": str(getattr(subject, fact)), "searches": searches}


def _described(rng: random.Random, person: Person, there: World, *, transfer: bool) -> Row | None:
    """Return a question for the only person of a town with some work or instrument; None if there are several."""
    what, where = (person.instrument, person.town) if transfer else (person.work, person.town)
    alike = [other for other in there.people if other.town == where and what in (other.work, other.instrument)]
    query = f"born in {where} {'plays the' if transfer else 'works as a'} {what}"
    if len(alike) > 1 or search(query).partition("\n")[0].partition(": ")[2] != person.name:
        return None
    wordings: tuple[str, ...] = (
        "Who plays the {what} and comes from {where}?",
        "{where} is the home of someone who plays the {what}. Who is it?",
        "Tell me who in {where} plays the {what}.",
    )
    if not transfer:
        wordings = ("Which {what} was born in {where}?", "Who was born in {where} and works as a {what}?")
    question = rng.choice(wordings).format(what=what, where=where)
    return {"question": question, "answer": person.name, "searches": [query]}


def _older(town: Town, other: Town, *, transfer: bool) -> Row:
    """Return a question that compares two towns."""
    if transfer:
        more = max(town, other, key=lambda place: place.inhabitants)
        question = f"In which of the two live more people, {town.name} or {other.name}?"
    else:
        more = min(town, other, key=lambda place: place.founded)
        question = f"Which town was founded earlier, {town.name} or {other.name}?"
    return {"question": question, "answer": more.name, "searches": [town.name, other.name]}
