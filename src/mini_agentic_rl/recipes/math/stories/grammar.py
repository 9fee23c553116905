"""Stories composed of clauses: a beginning, events, and a question.

A `Shape` is the list of a story's parts, which determines the number of operations; a `Scene` has the words. The words
that are drawn (scene, clauses, how they are joined) are the story, which decides the split. They have their own random
generator, so that one story can have many numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

from .story import NAMES, Problem, read_toml

Beginning: TypeAlias = Literal["has", "packed"]
Event: TypeAlias = Literal["gain", "loss", "packs", "times", "part"]
Ending: TypeAlias = Literal["count", "share", "price", "more"]

OPERATIONS: dict[Beginning | Event | Ending, int] = {
    "has": 0, "packed": 1,
    "gain": 1, "loss": 1, "packs": 2, "times": 1, "part": 1,
    "count": 0, "share": 1, "price": 1, "more": 1,
}  # fmt: skip

_EVENTS: Sequence[Event] = ("gain", "loss", "packs", "times", "part")
_WEIGHTS: dict[Event, int] = {"gain": 5, "loss": 5, "packs": 3, "times": 2, "part": 2}
_TIMES = {2: ("doubles", "twice"), 3: ("triples", "three times"), 4: ("quadruples", "four times")}
_PARTS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 10: "a tenth"}
_MORE = (
    ("{o} wants {x} {i}", "how many {i} are missing?"),
    ("the goal is {x} {i}", "how many {i} are missing?"),
    ("{x} {i} are needed in all", "how many more {i} are needed?"),
)
_TIMED = ("then ", "in the end ", "the next day ")
_ASIDE_SHARE = 0.15
_SMALL = 25
"""Smallest amount that something is taken from."""
_LARGEST = 999_999
"""Largest answer."""
_WORDS = 60
"""Words of the longest question."""


@dataclass(frozen=True)
class Scene:
    """The words of one setting; `scenes.toml` describes the fields."""

    items: tuple[str, ...]
    has: tuple[str, ...]
    packed: tuple[str, ...]
    gains: tuple[str, ...]
    losses: tuple[str, ...]
    packs: tuple[str, ...]
    count: tuple[str, ...]
    share: tuple[tuple[str, str], ...] = ()
    price: tuple[tuple[str, str], ...] = ()


_WORDS_OF_SCENES = read_toml("scenes.toml")
SCENES = tuple(Scene(**{name: tuple(words) for name, words in scene.items()}) for scene in _WORDS_OF_SCENES["scenes"])
ASIDES = tuple(_WORDS_OF_SCENES["asides"])
"""Clauses with a number that the answer does not need."""


@dataclass(frozen=True)
class Shape:
    """The parts of a story."""

    beginning: Beginning
    events: tuple[Event, ...]
    ending: Ending

    @property
    def level(self) -> int:
        """Return the number of operations."""
        return sum(OPERATIONS[part] for part in (self.beginning, *self.events, self.ending))


class _Draft:
    """An unfinished story: its clauses with their numbers, the amount so far, and the expression of the amount."""

    def __init__(self, words: random.Random, numbers: random.Random, scene: Scene) -> None:
        self.words = words
        self.numbers = numbers
        self.scene = scene
        self.item = words.choice(scene.items)
        self.name, self.other = words.sample(NAMES, 2)
        self.story: list[str] = []
        self.clauses: list[str] = []
        self.plan: list[str] = []
        self.amount = 0
        self.expression = ""
        self.is_sum = False

    def one_of(self, clauses: Sequence[str]) -> str:
        """Draw a clause that the story does not have yet, if there is one."""
        return self.words.choice([clause for clause in clauses if clause not in self.story] or clauses)

    def say(self, clause: str, **numbers: int) -> str:
        """Return a clause with its words and numbers, and note it as part of the story."""
        self.story.append(clause)
        return clause.format(n=self.name, o=self.other, i=self.item, **numbers)

    def tell(self, clause: str, **numbers: int) -> None:
        """Add a clause."""
        self.clauses.append(self.say(clause, **numbers))

    def add(self, sign: str, text: str, amount: int) -> None:
        """Add to the amount, or subtract from it."""
        self.amount += amount if sign == "+" else -amount
        self.expression = f"{self.expression}{sign}{text}"
        self.is_sum = True

    def scale(self, sign: str, by: int) -> None:
        """Multiply or divide the amount; it must be divisible."""
        self.amount = self.amount * by if sign == "*" else self.amount // by
        inner = f"({self.expression})" if self.is_sum else self.expression
        self.expression = f"{inner}{sign}{by}"
        self.is_sum = False


def shapes_of(level: int) -> list[Shape]:
    """Return all shapes of `level` operations and at most three events."""
    shapes: list[Shape] = []

    def extend(events: tuple[Event, ...], beginning: Beginning) -> None:
        for ending in ("count", "share", "price", "more"):
            shape = Shape(beginning, events, ending)
            if shape.level == level and (events or beginning == "packed" or ending != "count"):
                shapes.append(shape)
        used = OPERATIONS[beginning] + sum(OPERATIONS[event] for event in events)
        if used < level and len(events) < 3:
            for event in _EVENTS:
                if event not in ("times", "part") or event not in events:
                    extend((*events, event), beginning)

    for beginning in ("has", "packed"):
        extend((), beginning)
    return shapes


_SHAPES: dict[int, list[Shape]] = {level: shapes_of(level) for level in (1, 2, 3, 4)}
_SUMMED_WEIGHTS: dict[int, list[float]] = {
    level: list(accumulate(math.prod(_WEIGHTS[event] / 5 for event in shape.events) for shape in shapes))
    for level, shapes in _SHAPES.items()
}
_FITTING: dict[Ending, list[Scene]] = {
    "count": list(SCENES),
    "share": [scene for scene in SCENES if scene.share],
    "price": [scene for scene in SCENES if scene.price],
    "more": list(SCENES),
}


def compose(words: random.Random, numbers: random.Random, level: int) -> Problem | None:
    """Return a story of a level, with words drawn from `words` and numbers from `numbers`; None if these do not fit."""
    shape = words.choices(_SHAPES[level], cum_weights=_SUMMED_WEIGHTS[level])[0]
    draft = _Draft(words, numbers, words.choice(_FITTING[shape.ending]))
    _begin(draft, shape)
    if not all(_happen(draft, event) for event in shape.events):
        return None
    question = _ask(draft, shape)
    if question is None or not 10 <= draft.amount <= _LARGEST:
        return None
    text = _joined(draft, question)
    if len(text.split()) > _WORDS:
        return None
    return Problem(
        story=" | ".join((*draft.story, shape.ending)),
        question=text,
        expression=draft.expression,
        level=level,
        thought=f"{', then '.join(draft.plan).capitalize()}.",
    )


def _size(numbers: random.Random) -> int:
    """Draw a small, medium or large amount."""
    return numbers.randint(*numbers.choices(((12, 99), (100, 999), (1000, 9899)), (3, 4, 4))[0])


def _packs(numbers: random.Random) -> tuple[int, int]:
    """Draw a number of packs, and the size of each."""
    return numbers.randint(3, 98), numbers.randint(*numbers.choice(((4, 30), (11, 98), (100, 489))))


def _begin(draft: _Draft, shape: Shape) -> None:
    if shape.beginning == "has":
        start = _size(draft.numbers)
        draft.tell(draft.one_of(draft.scene.has), x=start)
        draft.amount, draft.expression = start, str(start)
        return
    packs, each = _packs(draft.numbers)
    draft.tell(draft.one_of(draft.scene.packed), x=packs, y=each)
    draft.amount, draft.expression = packs * each, f"{packs}*{each}"
    draft.plan.append("multiply the packs by their size")


def _happen(draft: _Draft, event: Event) -> bool:
    """Add an event; return False if the amount does not allow it."""
    numbers, scene = draft.numbers, draft.scene
    if event == "gain":
        more = _size(numbers)
        draft.tell(draft.one_of(scene.gains), x=more)
        draft.add("+", str(more), more)
        draft.plan.append("add what came")
    elif event == "loss":
        if draft.amount < _SMALL:
            return False
        less = numbers.randint(draft.amount // 10 + 2, draft.amount * 9 // 10)
        draft.tell(draft.one_of(scene.losses), x=less)
        draft.add("-", str(less), less)
        draft.plan.append("subtract what went")
    elif event == "packs":
        packs, each = _packs(numbers)
        draft.tell(draft.one_of(scene.packs), x=packs, y=each)
        draft.add("+", f"{packs}*{each}", packs * each)
        draft.plan.append("add packs times size")
    elif event == "times":
        by = draft.words.choice(tuple(_TIMES))
        verb, times = _TIMES[by]
        draft.tell(draft.words.choice((f"then this amount {verb}", f"the next day it is {times} as much")))
        draft.scale("*", by)
        draft.plan.append("multiply")
    else:
        by = draft.words.choice(tuple(_PARTS))
        if draft.amount % by:
            return False
        part = _PARTS[by]
        draft.tell(draft.words.choice((f"then only {part} of that is kept", f"in the end {part} of it remains")))
        draft.scale("/", by)
        draft.plan.append("take the part")
    return True


def _ask(draft: _Draft, shape: Shape) -> str | None:
    """Add the ending and return the question; None if the amount does not allow it."""
    words, numbers, scene = draft.words, draft.numbers, draft.scene
    if shape.ending == "count":
        return draft.say(words.choice(scene.count))
    if shape.ending == "share":
        clause, question = words.choice(scene.share)
        parts = [by for by in range(2, 99) if draft.amount % by == 0 and draft.amount >= 10 * by]
        if not parts:
            return None
        by = numbers.choice(parts)
        draft.tell(clause, x=by)
        draft.scale("/", by)
        draft.plan.append("divide into equal parts")
        return draft.say(question)
    if shape.ending == "price":
        clause, question = words.choice(scene.price)
        each = numbers.randint(2, 49)
        draft.tell(clause, x=each)
        draft.scale("*", each)
        draft.plan.append("multiply by the price")
        return draft.say(question)
    clause, question = words.choice(_MORE)
    if draft.amount < _SMALL:
        return None
    goal = draft.amount + numbers.randint(11, max(12, draft.amount))
    draft.tell(clause, x=goal)
    inner = f"({draft.expression})" if draft.is_sum else draft.expression
    draft.expression, draft.amount, draft.is_sum = f"{goal}-{inner}", goal - draft.amount, True
    draft.plan.append("subtract from the larger number")
    return draft.say(question)


def _joined(draft: _Draft, question: str) -> str:
    """Return the clauses and the question as text, sometimes with an aside."""
    words = draft.words
    clauses = list(draft.clauses)
    if words.random() < _ASIDE_SHARE:
        aside = words.choice(ASIDES)
        draft.story.append(aside)
        clauses.insert(words.randrange(len(clauses) + 1), aside.format(n=draft.name, x=draft.numbers.randint(2, 60)))
    elif len(clauses) <= 2 and not clauses[-1].startswith(_TIMED) and words.random() < 0.25:
        question_first = words.random() < 0.5
        draft.story.append("asked first" if question_first else "if")
        condition = " and ".join(clauses)
        if question_first:
            return f"{question[0].upper()}{question[1:-1]} if {condition}?"
        return f"If {condition}, {question}"
    sentences: list[str] = []
    while clauses:
        sentence = clauses.pop(0)
        if clauses and words.random() < 0.3:
            joint = words.choice((", and ", "; ", ", then "))
            if clauses[0].startswith(_TIMED):
                joint = ", and "
            draft.story.append(joint)
            sentence += joint + clauses.pop(0)
        sentences.append(sentence + ".")
    sentences.append(question)
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
