"""The scenes that composed stories are set in: who has what, what is added and taken away, and how it is asked for.

In a clause `{n}` is a first name, `{i}` the things, `{x}` and `{y}` numbers. Clauses begin without a capital where they
do not begin with a name, so that they can stand anywhere in a sentence.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias


@dataclass(frozen=True)
class Scene:
    """The words of one setting."""

    items: tuple[str, ...]
    """Plural nouns; one is drawn for a story."""
    has: tuple[str, ...]
    """x things at the beginning."""
    packed: tuple[str, ...]
    """x packs of y things at the beginning."""
    gains: tuple[str, ...]
    """x things are added."""
    losses: tuple[str, ...]
    """x things are taken away."""
    packs: tuple[str, ...]
    """x packs of y things are added."""
    count: tuple[str, ...]
    """The question how many there are at the end."""
    share: tuple[tuple[str, str], ...] = ()
    """They are divided into x equal parts, and the question for one part."""
    price: tuple[tuple[str, str], ...] = ()
    """Each is worth x, and the question for the worth of all."""


_SOLD = (
    ("each of them is sold for {x} dollars", "how many dollars does {n} get for all of them?"),
    ("{n} sells every one of them at {x} dollars", "how many dollars is that?"),
)
_PARTS = (
    ("{n} divides them equally among {x} friends", "how many {i} does each friend get?"),
    ("{n} puts them into {x} bags, the same number in each", "how many {i} are in one bag?"),
)

SCENES: tuple[Scene, ...] = (
    Scene(
        items=("stamps", "coins", "postcards", "badges", "comics", "stickers", "trading cards"),
        has=(
            "{n} has {x} {i}",
            "{n} owns {x} {i}",
            "{n} keeps {x} {i} in an album",
            "there are {x} {i} in the collection of {n}",
        ),
        packed=("{n} has {x} albums with {y} {i} each", "{n} owns {x} boxes, and every box holds {y} {i}"),
        gains=("{n} buys {x} more", "{n} gets {x} {i} as a present", "{n} finds {x} more in the attic"),
        losses=("{n} gives {x} of them away", "{n} loses {x} {i}", "{n} trades {x} of them for a book"),
        packs=("{n} buys {x} packs of {y} {i}", "{n} gets {x} more albums with {y} {i} in each"),
        count=("how many {i} does {n} have now?", "how many {i} are in the collection in the end?"),
        share=_PARTS,
        price=_SOLD,
    ),
    Scene(
        items=("apples", "pears", "plums", "peaches", "lemons", "pumpkins", "melons"),
        has=("{n} picks {x} {i}", "{n} has {x} {i} on the cart", "the farm of {n} has {x} ripe {i}"),
        packed=("{n} picks {x} baskets of {y} {i}", "there are {x} trees on the farm, and {n} picks {y} {i} from each"),
        gains=("{n} picks {x} more the next day", "a neighbor brings {x} {i}", "{x} more {i} ripen"),
        losses=("{x} of them are rotten and thrown away", "{n} sells {x} {i} at the market", "birds eat {x} of them"),
        packs=("{n} adds {x} crates of {y} {i}", "a neighbor brings {x} baskets with {y} {i} in each"),
        count=("how many {i} are there now?", "how many {i} does {n} have left to sell?"),
        share=(("{n} packs them into {x} equal crates", "how many {i} go into each crate?"), *_PARTS),
        price=_SOLD,
    ),
    Scene(
        items=("muffins", "cookies", "rolls", "pretzels", "cupcakes", "pies"),
        has=("{n} bakes {x} {i}", "the bakery of {n} has {x} {i}", "{n} made {x} {i} this morning"),
        packed=("{n} bakes {x} trays of {y} {i}", "{n} fills {x} plates with {y} {i} each"),
        gains=("{n} bakes {x} more", "a helper brings {x} {i} from the oven", "{x} more come out of the oven"),
        losses=("customers buy {x} of them", "{n} burns {x} {i}", "{n} eats or gives away {x} {i}"),
        packs=("{n} bakes another {x} trays of {y}", "a helper brings {x} boxes with {y} {i} in each"),
        count=("how many {i} are there at the end?", "how many {i} remain in the bakery?"),
        share=(("{n} puts them on {x} plates, the same number on each", "how many {i} are on one plate?"), *_PARTS),
        price=_SOLD,
    ),
    Scene(
        items=("books", "magazines", "novels", "dictionaries", "maps"),
        has=("a library has {x} {i}", "there are {x} {i} in the library of {n}", "{n} counts {x} {i} in the library"),
        packed=("a library has {x} shelves with {y} {i} on each", "{n} counts {x} shelves of {y} {i} in a library"),
        gains=("{n} donates {x} {i} to it", "{x} {i} are brought back", "the library orders {x} new {i}"),
        losses=("readers borrow {x} of them", "{x} old {i} are thrown out", "{x} {i} are lent to a school"),
        packs=("{x} boxes of {y} {i} are delivered", "{n} brings {x} bags with {y} {i} in each"),
        count=("how many {i} are in the library now?", "how many {i} does the library have after that?"),
        share=(("the {i} are put on {x} shelves, the same number on each", "how many {i} are on one shelf?"),),
        price=(("each of the {i} is worth {x} dollars", "what are all of them worth in dollars?"),),
    ),
    Scene(
        items=("dollars",),
        has=("{n} has {x} dollars", "{n} has saved {x} dollars", "there are {x} dollars in the purse of {n}"),
        packed=("{n} works {x} hours for {y} dollars an hour", "{n} saves {y} dollars a week for {x} weeks"),
        gains=(
            "{n} earns {x} dollars",
            "an aunt gives {n} {x} dollars",
            "{n} finds {x} dollars",
            "{n} is paid {x} more",
        ),
        losses=("{n} spends {x} dollars on shoes", "{n} pays {x} dollars for food", "{n} lends a friend {x} dollars"),
        packs=("{n} works {x} more days for {y} dollars a day", "{n} sells {x} toys for {y} dollars each"),
        count=("how many dollars does {n} have now?", "how much money does {n} have in the end?"),
        share=(
            ("{n} spends all of it evenly over {x} days", "how many dollars is that for each day?"),
            ("{n} shares the money equally with others, {x} people in all", "how many dollars does each of them get?"),
        ),
    ),
    Scene(
        items=("points",),
        has=("{n} has {x} points in a game", "{n} scores {x} points in the first round", "{n} starts with {x} points"),
        packed=("{n} plays {x} rounds and scores {y} points in each", "{n} hits the target {x} times for {y} points"),
        gains=("{n} scores {x} more", "{n} wins a bonus of {x} points", "{n} adds {x} points in the next round"),
        losses=("{n} loses {x} points", "a mistake costs {n} {x} points", "{n} is fined {x} points"),
        packs=("{n} wins {x} more rounds with {y} points each", "{n} finds {x} jewels worth {y} points each"),
        count=("how many points does {n} have now?", "what is the final score of {n}?"),
    ),
    Scene(
        items=("passengers", "people", "tourists"),
        has=("there are {x} {i} on a ship", "a train leaves with {x} {i}", "{n} drives a bus with {x} {i}"),
        packed=("a train has {x} cars with {y} {i} in each", "{n} counts {x} buses with {y} {i} each"),
        gains=("{x} more get on at the next stop", "{x} {i} join them", "another {x} {i} come aboard"),
        losses=("{x} of them get off", "{x} {i} leave at the harbor", "{x} go home"),
        packs=("{x} groups of {y} {i} join them", "{x} more cars with {y} {i} each are added"),
        count=("how many {i} are there then?", "how many {i} are on the way now?"),
        share=(("the {i} are divided into {x} equal groups", "how many {i} are in each group?"),),
        price=(("each of the {i} pays {x} dollars", "how many dollars do they pay altogether?"),),
    ),
    Scene(
        items=("liters of water", "liters of oil", "liters of milk"),
        has=("a tank holds {x} {i}", "{n} has {x} {i} in a tank", "there are {x} {i} in the barrel of {n}"),
        packed=("{n} has {x} cans with {y} {i} each", "{n} pours {x} buckets of {y} {i} into an empty tank"),
        gains=("{n} pours in {x} liters", "a truck brings {x} liters", "{x} more liters flow in"),
        losses=("{n} uses {x} liters", "{x} liters leak out", "{n} pours out {x} liters"),
        packs=("{n} adds {x} cans of {y} liters", "{x} buckets of {y} liters are poured in"),
        count=("how many {i} are there now?", "how many liters are left?"),
        share=(("{n} fills all of it into {x} equal bottles", "how many liters are in one bottle?"),),
        price=(("a liter costs {x} dollars", "how many dollars is all of it worth?"),),
    ),
    Scene(
        items=("bricks", "tiles", "boards", "panels", "stones"),
        has=("{n} has {x} {i} for a house", "{x} {i} lie on the building site of {n}", "{n} orders {x} {i}"),
        packed=("{n} unloads {x} pallets of {y} {i}", "{x} trucks bring {y} {i} each to {n}"),
        gains=("a truck brings {x} more", "{n} buys another {x}", "{x} {i} are left over from another house"),
        losses=("{n} uses {x} of them for a wall", "{x} {i} break", "workers take {x} of them away"),
        packs=("{x} more pallets with {y} {i} each arrive", "{n} buys {x} packs of {y} {i}"),
        count=("how many {i} are on the site now?", "how many {i} does {n} still have?"),
        share=(("the {i} are used for {x} equal walls", "how many {i} go into one wall?"),),
        price=(("each of them costs {x} dollars", "how many dollars do they cost together?"),),
    ),
    Scene(
        items=("fish", "crabs", "shrimps"),
        has=("{n} catches {x} {i}", "the boat of {n} brings in {x} {i}", "there are {x} {i} in the net of {n}"),
        packed=("{n} fills {x} buckets with {y} {i} each", "{n} empties {x} nets and finds {y} {i} in each"),
        gains=("{n} catches {x} more in the afternoon", "another boat gives {n} {x} {i}"),
        losses=("{n} throws {x} of them back", "{x} {i} escape", "a restaurant buys {x} of them"),
        packs=("{n} empties {x} more nets with {y} {i} in each", "a friend adds {x} buckets of {y} {i}"),
        count=("how many {i} does {n} bring home?", "how many {i} are left?"),
        share=(("{n} lays them on {x} trays, the same number on each", "how many {i} are on one tray?"), *_PARTS),
        price=_SOLD,
    ),
    Scene(
        items=("pages", "words", "lines"),
        has=("{n} writes {x} {i} on Monday", "{n} has written {x} {i} of a story", "a report by {n} has {x} {i}"),
        packed=("{n} writes {y} {i} a day for {x} days", "{n} writes {x} chapters of {y} {i} each"),
        gains=("{n} adds {x} {i}", "{n} writes {x} more the day after", "a friend contributes {x} {i}"),
        losses=("{n} deletes {x} of them", "{x} {i} are cut by the editor", "{n} crosses out {x} {i}"),
        packs=("{n} writes {x} more chapters with {y} {i} each", "{n} adds {x} parts of {y} {i}"),
        count=("how many {i} are there in the end?", "how many {i} does the text have now?"),
        share=(("the text is divided into {x} equal parts", "how many {i} has each part?"),),
    ),
    Scene(
        items=("chairs", "tables", "lamps", "desks", "benches"),
        has=("a school has {x} {i}", "there are {x} {i} in a hall", "{n} sets up {x} {i}"),
        packed=("a hall has {x} rows of {y} {i}", "{n} equips {x} rooms with {y} {i} each"),
        gains=("{n} carries in {x} more", "{x} new {i} are bought", "the neighbors lend {x} {i}"),
        losses=("{x} of them are broken and removed", "{n} takes {x} {i} to another room", "{x} {i} are sold"),
        packs=("{n} adds {x} more rows of {y}", "{x} vans bring {y} {i} each"),
        count=("how many {i} are there now?", "how many {i} are left in place?"),
        share=(("{n} arranges them in {x} equal rows", "how many {i} are in one row?"),),
        price=(("one of them costs {x} dollars", "how many dollars do all of them cost?"),),
    ),
    Scene(
        items=("sheep", "chickens", "ducks", "goats", "rabbits"),
        has=("{n} has {x} {i}", "there are {x} {i} on a meadow", "a farmer, {n}, keeps {x} {i}"),
        packed=("{n} has {x} stables with {y} {i} in each", "there are {x} pens of {y} {i} on a farm"),
        gains=("{x} young ones are born", "{n} buys {x} {i}", "{x} {i} come over from the next farm"),
        losses=("{x} of them run away", "{n} sells {x} {i}", "{x} {i} are moved to another farm"),
        packs=("{n} buys {x} herds of {y} {i}", "{x} trailers bring {y} {i} each"),
        count=("how many {i} does {n} have after that?", "how many {i} are there now?"),
        share=(("{n} drives them into {x} pens, the same number into each", "how many {i} are in one pen?"),),
        price=_SOLD,
    ),
    Scene(
        items=("files", "photos", "songs", "videos", "messages"),
        has=("{n} has {x} {i} on a computer", "there are {x} {i} on the phone of {n}", "{n} stores {x} {i}"),
        packed=("{n} has {x} folders with {y} {i} each", "{n} copies {x} disks of {y} {i} to an empty computer"),
        gains=("{n} downloads {x} more", "{n} receives {x} {i}", "a friend sends {x} {i}"),
        losses=("{n} deletes {x} of them", "{x} {i} are lost", "{n} moves {x} {i} to a disk"),
        packs=("{n} copies {x} more folders of {y} {i}", "{n} adds {x} albums with {y} {i} in each"),
        count=("how many {i} does {n} have now?", "how many {i} are stored in the end?"),
        share=(("{n} sorts them into {x} equal folders", "how many {i} are in each folder?"),),
    ),
    Scene(
        items=("tickets", "flags", "candles", "balloons", "toys", "cups"),
        has=("{n} has {x} {i} to sell", "a stall at the fair has {x} {i}", "{n} brings {x} {i} to the fair"),
        packed=("{n} opens {x} boxes of {y} {i}", "a stall gets {x} cartons with {y} {i} each"),
        gains=("{n} fetches {x} more", "a supplier delivers {x} {i}", "{x} unsold {i} come back"),
        losses=("{n} sells {x} of them before noon", "visitors buy {x} {i}", "the rain ruins {x} of them"),
        packs=("a supplier delivers {x} cartons of {y}", "{n} opens another {x} boxes with {y} {i} each"),
        count=("how many {i} are left to sell?", "how many {i} does the stall have now?"),
        share=_PARTS,
        price=_SOLD,
    ),
    Scene(
        items=("trees", "roses", "tulips", "bushes", "seedlings"),
        has=("{n} plants {x} {i}", "a park has {x} {i}", "there are {x} {i} in the garden of {n}"),
        packed=("{n} plants {x} rows of {y} {i}", "a park has {x} beds with {y} {i} each"),
        gains=("{n} plants {x} more in spring", "{x} {i} are donated", "the city adds {x} {i}"),
        losses=("a storm destroys {x} of them", "{n} cuts down {x} {i}", "{x} of them dry up"),
        packs=("{n} plants another {x} rows with {y} {i} in each", "{x} schools plant {y} {i} each"),
        count=("how many {i} grow there now?", "how many {i} are left?"),
        share=(("the {i} stand in {x} equal rows", "how many {i} are in a row?"),),
    ),
)

ASIDES: tuple[str, ...] = (
    "{n} is {x} years old",
    "it is {x} degrees outside",
    "the way there takes {x} minutes",
    "{n} lives in house number {x}",
    "{n} has done this for {x} years",
    "the room has {x} windows",
    "{n} has {x} cousins",
    "it is day {x} of the month",
)
"""Sentences with a number that the answer does not need."""


# A word problem before it is a row: its text, its numbers, and the name of its story.


Operand: TypeAlias = int | Decimal

NAMES: tuple[str, ...] = (
    "Abel", "Ada", "Ahmed", "Aiko", "Alba", "Alejandro", "Amara", "Amit", "Ana", "Andre", "Anika", "Anton", "Aria",
    "Arjun", "Ava", "Bao", "Beatriz", "Ben", "Bilal", "Bruno", "Camila", "Carl", "Carmen", "Cedric", "Chen", "Chloe",
    "Clara", "Daniel", "Daria", "Dario", "David", "Diego", "Dora", "Eduardo", "Elena", "Eli", "Elif", "Emeka", "Emma",
    "Eric", "Esther", "Ethan", "Fabio", "Farid", "Fatima", "Felix", "Fiona", "Gabriel", "George", "Gina", "Grace",
    "Hamza", "Hana", "Harold", "Helen", "Henry", "Hugo", "Ibrahim", "Ida", "Ines", "Isaac", "Ivan", "Ivy", "Jack",
    "Jamal", "James", "Jasmin", "Joanna", "John", "Jonas", "Julia", "Kai", "Karim", "Kate", "Kenji", "Kofi", "Lara",
    "Laura", "Leah", "Lena", "Leo", "Liam", "Lina", "Lucas", "Lucy", "Maja", "Malik", "Marco", "Maria", "Martin",
    "Mary", "Mateo", "Maya", "Mei", "Michael", "Mila", "Mira", "Mohamed", "Mona", "Nadia", "Naomi", "Nina", "Noah",
    "Nora", "Oliver", "Olivia", "Omar", "Oscar", "Paul", "Pedro", "Peter", "Priya", "Quinn", "Rahim", "Raj", "Rita",
    "Robert", "Rosa", "Ruth", "Sally", "Sam", "Samir", "Sara", "Sofia", "Sven", "Tara", "Thomas", "Tim", "Tom", "Uma",
    "Vera", "Victor", "Viktor", "Wanda", "Wei", "Will", "Yara", "Yuki", "Yusuf", "Zara", "Zoe",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A problem with its solution."""

    story: str
    """The text without its numbers and names; two problems of one story differ in nothing else."""
    question: str
    expression: str
    """Expression whose value is the answer, as a calculator takes it."""
    level: int
    """The number of operations."""
    thought: str
    """The plan in a few words, without numbers."""


# Stories written as a whole: each keeps its phrasings, the draw of its numbers, and the expression in step.
#
# Operands are named a, b, c, d, e in the order in which they are drawn. Each phrasing is a story of its own where
# splits are told apart.


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


# Stories that are never trained on: other things, other wordings, and operations that training does not have.
#
# They measure whether what was learnt carries over. Nothing here is made by the grammar, and no story of the grammar or
# of the other files is written after one of these.


def _story(question: str, draw: Draw, expression: str) -> Story:
    return told(draw, expression, "", question)


TRANSFER: tuple[Story, ...] = (
    # one operation
    _story("The temperature in the desert was {a} degrees at noon and fell by {b} degrees during the night. What was "
           "it in the morning?", larger_first((31, 49), (5, 28)), "{a}-{b}"),
    _story("{name} climbs from {b} meters above the sea to a summit at {a} meters. How many meters does {name} climb?",
           larger_first((2450, 4810), (310, 1990)), "{a}-{b}"),
    _story("A theater has {a} rows with {b} seats in every row. How many people can sit in it?",
           numbers((14, 58), (12, 46)), "{a}*{b}"),
    _story("The village had {a} inhabitants ten years ago. Since then {b} have moved in. What is the population today?",
           numbers((1240, 8890), (112, 980)), "{a}+{b}"),
    _story("A phone battery lasts {a} hours on one charge. How many hours does {name} get out of {b} charges?",
           numbers((11, 38), (12, 64)), "{a}*{b}"),
    _story("Candidate {name} received {a} votes, {other} received {b}. By how many votes did {name} win?",
           larger_first((5210, 9880), (1230, 5190)), "{a}-{b}"),
    _story("{name} earns {a} dollars a month. How many dollars does {name} earn in {b} months?",
           numbers((1120, 4890), (5, 36)), "{a}*{b}"),
    _story("A rectangle is {a} centimeters long and {b} centimeters wide. What is its area in square centimeters?",
           numbers((14, 98), (12, 89)), "{a}*{b}"),
    _story("An elevator can lift {a} kilograms. It already carries {b} kilograms. How much more can it lift?",
           larger_first((610, 1490), (112, 590)), "{a}-{b}"),
    _story("{name} was born in {b}. How old did {name} turn in {a}?", larger_first((2090, 2120), (1921, 1989)),
           "{a}-{b}"),
    _story("A spaceship flew {a} million kilometers in its first year and {b} million in its second. How far did it "
           "fly in both years, in million kilometers?", numbers((113, 890), (113, 890)), "{a}+{b}"),
    _story("{a} kilograms of flour are used up in {b} days, the same amount every day. How many kilograms are used "
           "daily?", divisible((13, 98), (4, 31)), "{a}/{b}"),
    _story("A hiker has {a} kilometers behind and {b} kilometers ahead of the next hut. How long is the whole trail?",
           numbers((12, 189), (12, 189)), "{a}+{b}"),
    _story("Every night {name} sleeps {a} minutes. How many minutes of sleep is that in {b} nights?",
           numbers((380, 540), (6, 31)), "{a}*{b}"),
    _story("The concert hall sold {a} seats, but {b} visitors stayed away. How many came?",
           larger_first((1250, 4890), (112, 1190)), "{a}-{b}"),
    _story("A cook needs {a} grams of rice for each guest. How many grams does {name} weigh out for {b} guests?",
           numbers((65, 145), (12, 89)), "{a}*{b}"),
    _story("{a} soldiers march in {b} columns of equal length. How long is each column, in soldiers?",
           divisible((12, 89), (4, 36)), "{a}/{b}"),
    _story("Yesterday the shares of a company stood at {a} dollars. Today they rose by {b} dollars. What is the price "
           "now?", priced((2150, 9890), (3, 49)), "{a}+{b}"),
    _story("A marathon runner has covered {b} of {a} meters when it begins to rain. How many meters does {name} have "
           "to run in the rain?", larger_first((42195, 42195), (5200, 39800)), "{a}-{b}"),
    _story("A spider has 8 legs. How many legs do {a} spiders have?", numbers((13, 489)), "{a}*8"),
    # two operations
    _story("A fence runs once around a field that is {a} meters long and {b} meters wide. How long is the fence?",
           numbers((43, 289), (23, 189)), "2*({a}+{b})"),
    _story("{name} got {a}, {b} and {c} points in three exams. What is the sum of these points?",
           numbers((41, 99), (41, 99), (41, 99)), "{a}+{b}+{c}"),
    _story("A car uses {b} liters of fuel for 100 kilometers. How many liters does it use for {a} kilometers?",
           multiples(100, (2, 39), (4, 12)), "{a}*{b}/100"),
    _story("{name} borrows {a} dollars and has to give back {b} percent of it as a fee. How many dollars is the fee?",
           multiples(100, (3, 98), (2, 45)), "{a}*{b}/100"),
    _story("Two thermometers show {a} and {b} degrees. What is the mean of the two?",
           numbers((11, 60), (11, 99)), "({a}+{b})/2"),
    _story("A computer costs {a} dollars. {name} pays {b} dollars at once and the rest in {c} equal monthly rates. How "
           "high is a rate?", with_rest((4, 24), (31, 98), (100, 490)), "({a}-{b})/{c}"),
    _story("A cyclist rides {a} hours at {b} kilometers per hour and then pushes the bike for {c} kilometers. What is "
           "the whole distance?", numbers((3, 9), (14, 32), (2, 11)), "{a}*{b}+{c}"),
    _story("The rent of {name} is {a} dollars a month, heating included for {b} dollars. What is the rent without "
           "heating for {c} months?", larger_first((610, 1490), (42, 190), (4, 24)), "({a}-{b})*{c}"),
    _story("A hotel has {a} floors with {b} rooms each. {c} rooms are being painted. How many can be let?",
           numbers((8, 29), (14, 48), (5, 58)), "{a}*{b}-{c}"),
    _story("{name} is {a} years old, {other} is {b} years younger. How old are both together?",
           larger_first((41, 89), (3, 39)), "{a}+({a}-{b})"),
    _story("An orchestra plays {a} evenings. On each evening {b} seats downstairs and {c} in the balcony are taken. "
           "How many guests hear it?", numbers((4, 28), (210, 690), (35, 190)), "{a}*({b}+{c})"),
    _story("A swimmer does {a} lengths of {b} meters before breakfast and rests after half of the distance. After how "
           "many meters does {name} rest?", multiples(2, (8, 60), (25, 50)), "{a}*{b}/2"),
    _story("A reservoir held {a} cubic meters. It lost {b} in summer and gained {c} in winter. What does it hold now?",
           larger_first((5210, 9890), (512, 3190), (112, 1980)), "{a}-{b}+{c}"),
    _story("{a} grams of sugar make a cake for {b} people. How many grams are needed for {c} people?",
           divisible((11, 48), (4, 9), (12, 39)), "{a}/{b}*{c}"),
    _story("A taxi charges {a} dollars to start with and {b} dollars for every kilometer. What does {name} pay for {c} "
           "kilometers?", numbers((4, 12), (2, 6), (11, 49)), "{a}+{b}*{c}"),
    _story("A van may carry {a} kilograms. It is loaded with {b} parcels that weigh {c} kilograms each. How many "
           "kilograms is it below its limit?", larger_first((940, 1890), (11, 39), (6, 24)), "{a}-{b}*{c}"),
    # three operations
    _story("A class of {a} pupils goes to the museum. The bus is {b} dollars and each entry {c} dollars. {d} dollars "
           "come from the school. What do the parents pay?", numbers((14, 32), (120, 390), (4, 14), (20, 90)),
           "{b}+{a}*{c}-{d}"),
    _story("{name} runs {a} kilometers on each of {b} weekdays and {c} kilometers on both days of the weekend. How "
           "far is that in a week?", numbers((4, 14), (3, 5), (8, 24)), "{a}*{b}+{c}*2"),
    _story("Of {a} lottery tickets {b} percent win a prize of {c} dollars. How many dollars are paid out?",
           multiples(100, (3, 48), (2, 24), (5, 48)), "{a}*{b}/100*{c}"),
    _story("A garden is {a} meters long and {b} wide. A pond of {c} by {d} meters is dug in it. How many square meters "
           "remain?", numbers((24, 68), (18, 49), (3, 12), (3, 9)), "{a}*{b}-{c}*{d}"),
    _story("A plumber asks {a} dollars for coming and {b} dollars an hour. {name} pays for {c} hours with a voucher of "
           "{d} dollars. How many dollars are left to pay?", numbers((35, 160), (35, 70), (3, 9), (10, 25)),
           "{a}+{b}*{c}-{d}"),
    _story("Two ships leave opposite ends of a bay that is {d} kilometers wide and sail apart at {a} and {b} "
           "kilometers an hour. How far apart are they after {c} hours?",
           numbers((17, 40), (16, 39), (2, 7), (5, 19)), "({a}+{b})*{c}+{d}"),
    _story("{name} mixes {a} bottles of {b} deciliters with {c} deciliters of water and pours everything into 4 equal "
           "jugs. How many deciliters are in a jug?", numbers((4, 14), (5, 12), (12, 98)), "({a}*{b}+{c})/4"),
    _story("The four sides of a kite measure {a}, {a}, {b} and {b} centimeters. How long is its border?",
           numbers((23, 89), (31, 120)), "{a}*2+{b}*2"),
    # four operations
    _story("A family of {a} adults and {b} children goes swimming. Adults pay {c} dollars, children {d} dollars, and "
           "the locker for all costs 5 dollars. What does the family pay?",
           numbers((2, 9), (3, 14), (9, 24), (3, 8)), "{a}*{c}+{b}*{d}+5"),
    _story("A worker is paid {a} dollars an hour for {b} hours of the day and double for {c} hours of the night. What "
           "is that in dollars?", numbers((14, 39), (21, 40), (3, 9)), "{a}*{b}+{a}*2*{c}"),
    _story("A room is {a} meters long and {b} wide. One square meter of carpet costs {c} dollars, laying it {d} "
           "dollars in all, and {name} has a discount of 20 dollars. What is to be paid?",
           numbers((4, 14), (3, 9), (12, 48), (60, 190)), "{a}*{b}*{c}+{d}-20"),
    _story("{name} drives {a} kilometers with a car that needs one liter for {b} kilometers. A liter costs {c} "
           "dollars, the toll is {d} dollars, and a coffee 4 dollars. What does the trip cost?",
           divisible((8, 48), (11, 19), (2, 3), (6, 38)), "{a}/{b}*{c}+{d}+4"),
)  # fmt: skip
