"""Stories about units: wordings, materials, and the expression of each answer.

`{a} {u}` is a measure, and `{b}` and `{c}` are further numbers. In a wording `{u}`, `{v}` and `{w}` are units; in an
expression they are the measures in metric units. `{base}` is the metric unit of the answer. A wording does not depend
on the kind of unit, so each is used with every unit of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class UnitStory:
    """A kind of question: its level, its expression, and its wordings."""

    name: str
    level: int
    expression: str
    wordings: tuple[str, ...]
    """Wordings of the splits `train` and `val`."""
    held_out: tuple[str, ...]
    """Wordings of the split `test`."""
    measures: tuple[str, ...] = ("{a} {u}",)
    """The measures `{u}`, `{v}` and `{w}` of the expression."""
    base: str = ""
    """The only metric unit of the story; empty for all units."""


_SUMS: Final = (
    "{name} has {a} {u} of {stuff} and gets {b} {v} more. How many {base} is that now?",
    "To {a} {u} of {stuff} {name} adds {b} {v}. How many {base} are there?",
    "There were {a} {u} of {stuff}, and {b} {v} came in. How many {base} are there now?",
    "{name} buys {a} {u} of {stuff}, and then {b} {v} too. How many {base} does {name} buy in all?",
    "One {piece} is {a} {u}, the other is {b} {v}. How many {base} are both together?",
    "{name} brings {a} {u} of {stuff} and a friend brings {b} {v}. How many {base} do they have together?",
    "A store has {a} {u} of {stuff}. {b} {v} are delivered. How many {base} does it have then?",
    "What is the sum of {a} {u} and {b} {v} of {stuff}, in {base}?",
    "{name} uses {a} {u} of {stuff} on Monday and {b} {v} on Tuesday. How many {base} are used in total?",
    "{a} {u} of {stuff} grow by {b} {v}. How many {base} are there in the end?",
    "First {name} finds {a} {u} of {stuff}, later another {b} {v}. How many {base} is that altogether?",
    "{a} {u} of {stuff} are here and {b} {v} over there. How many {base} is that in all?",
    "A {piece} of {a} {u} is made {b} {v} larger. How many {base} does it have now?",
    "{name} already has {a} {u} of {stuff} and receives {b} extra {v}. How many {base} is that?",
    "Yesterday {name} sold {a} {u} of {stuff}, today {b} more {v}. How many {base} were sold?",
    "{name} needs {a} {u} of {stuff} for one job and {b} {v} for another. How many {base} are needed?",
    "A plan asks for {a} {u} of {stuff} plus {b} {v}. How many {base} does it ask for?",
    "After {a} {u} of {stuff} come {b} more {v}. How many {base} is the whole?",
    "Today {name} stored {a} {u} of {stuff} on top of {b} {v}. How many {base} are stored?",
    "{name} takes {b} {v} more than {a} {u} of {stuff}. How many {base} does {name} take?",
    "The new {piece} is {b} {v} more than the old one of {a} {u}. How many {base} is the new one?",
    "{name} mixes {a} {u} of {stuff} with {b} {v} of it. How many {base} is the mix?",
    "With {b} {v} added, how many {base} are {a} {u} of {stuff}?",
    "Ann has {a} {u} of {stuff}. {name} has {b} {v}. How many {base} have both of them?",
    "Two {pieces} are joined, one of {a} {u} and one of {b} {v}. How many {base} is the result?",
    "A gift of {b} {v} comes to {a} {u} of {stuff}. How many {base} are there now?",
    "A tank holds {a} {u} of {stuff}, and {b} additional {v} flow in. How many {base} does it hold?",
    "{name} had {a} {u} of {stuff} and found {b} other {v}. What is the total in {base}?",
    "A cart carries {a} {u} of {stuff}; {name} lays {b} new {v} on top. How many {base} does it carry?",
    "To the {a} {u} of {stuff} in a shed come {b} spare {v}. How many {base} are in the shed?",
    "{a} {u} of {stuff} stand ready; {name} brings {b} extra {v} of it. What is that together in {base}?",
)
_HELD_OUT_SUMS: Final = (
    "{name} owns {a} {u} of {stuff} and is given {b} {v} more. How many {base} does {name} own now?",
    "A farm had {a} {u} of {stuff} and bought {b} further {v}. What is the total in {base}?",
    "{name} did {a} {u} in the morning and {b} {v} in the evening. How many {base} is that altogether?",
    "Put {a} {u} and {b} {v} of {stuff} together. How many {base} are there?",
    "A shelf has {a} {u} of {stuff}; {name} puts {b} more {v} on it. How many {base} are on the shelf?",
    "The first {piece} has {a} {u} and the second has {b} {v}. How many {base} do they have in total?",
    "An order of {a} {u} of {stuff} is raised by {b} {v}. How many {base} is the order now?",
    "In spring there were {a} {u} of {stuff}, and {b} {v} were added. How many {base} were there then?",
    "{name} collects {a} {u} of {stuff} and also {b} {v}. How many {base} are collected?",
    "How many {base} are {a} {u} of {stuff} and another {b} {v}?",
)
_THREE: Final = (
    "{name} has {a} {u}, {b} {v} and {c} {w} of {stuff}. How many {base} is that in all?",
    "There are {a} {u} of {stuff} in one shed, {b} {v} in another, {c} {w} in a third. How many {base} is that?",
    "{name} buys {a} {u} of {stuff} on Monday, {b} {v} on Tuesday, {c} {w} on Friday. How many {base} does {name} buy?",
    "To {a} {u} of {stuff} {name} adds {b} more {v} and then {c} {w}. How many {base} are there now?",
    "Three {pieces} are {a} {u}, {b} {v} and {c} {w}. How many {base} are they together?",
    "What is the sum of {a} {u}, {b} {v} and {c} {w} of {stuff}, in {base}?",
    "{name} brings {a} {u} of {stuff}, a friend brings {b} {v}, and a neighbour {c} {w}. How many {base} do they have?",
    "A shop sold {a} {u} of {stuff} in May, {b} {v} in June and {c} {w} in July. How many {base} were sold in total?",
    "A store has {a} {u} of {stuff}. First {b} additional {v} are delivered, later {c} {w}. "
    "How many {base} does it have then?",
    "{a} {u}, {b} {v} and {c} {w} of {stuff} are put together. What is the total in {base}?",
    "One {piece} is {a} {u}, the next {b} {v}, the last {c} {w}. How many {base} is the whole?",
    "{name} uses {a} {u} of {stuff} in the morning, {b} {v} at noon and {c} {w} at night. How many {base} are used?",
    "A plan asks for {a} {u} of {stuff}, {b} {v} more, and another {c} {w}. How many {base} does it ask for?",
    "Ann has {a} {u} of {stuff}, Bob has {b} {v} and {name} has {c} {w}. How many {base} have all three?",
    "{name} finds {a} {u} of {stuff}, then {b} other {v}, then {c} more {w}. How many {base} is that altogether?",
    "Three carts carry {a} {u}, {b} {v} and {c} {w} of {stuff}. How many {base} do they carry?",
    "With {b} {v} and {c} {w} added, how many {base} are {a} {u} of {stuff}?",
    "{name} needs {a} {u} of {stuff} for a gate, {b} {v} for a roof, {c} {w} for a wall. How many {base} are needed?",
    "After {a} {u} of {stuff} come {b} spare {v}, and after them {c} {w}. How many {base} came?",
    "The {pieces} of {name} are {a} {u}, {b} {v} and {c} {w}. Give their sum in {base}.",
    "{name} mixes {a} {u} of {stuff} with {b} {v} and {c} {w} of it. How many {base} is the mix?",
    "There were {a} {u} of {stuff}; {b} new {v} came in, and {c} other {w} too. How many {base} are there now?",
    "From three farms come {a} {u}, {b} {v} and {c} {w} of {stuff}. How many {base} come in all?",
    "{name} already has {a} {u} of {stuff}, gets {b} extra {v} and buys {c} more {w}. How many {base} is that?",
)
_HELD_OUT_THREE: Final = (
    "{name} owns {a} {u} of {stuff}, rents {b} {v} and is given {c} {w}. How many {base} is that in total?",
    "On three days a crew lays {a} {u}, {b} {v} and {c} {w} of {stuff}. How many {base} does it lay altogether?",
    "Put {a} {u}, {b} {v} and {c} {w} of {stuff} together. How many {base} are there?",
    "The first {piece} has {a} {u}, the second {b} {v} and the third {c} {w}. How many {base} do they have in total?",
    "An order of {a} {u} of {stuff} is raised by {b} {v} and again by {c} {w}. How many {base} is the order now?",
    "In spring there were {a} {u} of {stuff}; {b} {v} came in May and {c} {w} in June. How many {base} are there?",
    "{name} collects {a} {u} of {stuff}, also {b} {v}, and at last {c} {w}. How many {base} are collected?",
    "How many {base} are {a} {u}, {b} {v} and another {c} {w} of {stuff}?",
    "A truck takes {a} {u} of {stuff} in Rome, {b} {v} in Pisa and {c} {w} in Turin. How many {base} does it take?",
    "A shelf has {a} {u} of {stuff}; {name} puts {b} {v} on it and a helper {c} {w}. How many {base} are on it?",
)
_SAME_UNIT: Final = 26
"""Number of these wordings that the story "plus" uses, with both numbers in the unit of the answer."""

STORIES: Final = (
    UnitStory("two", 1, "{u}+{v}", _SUMS, _HELD_OUT_SUMS, ("{a} {u}", "{b} {v}")),
    UnitStory("three", 2, "{u}+{v}+{w}", _THREE, _HELD_OUT_THREE, ("{a} {u}", "{b} {v}", "{c} {w}")),
    UnitStory(
        "times",
        3,
        "{u}*{b}",
        (
            "{name} has {b} {pieces} of {a} {u} each. How many {base} is that in all?",
            "There are {b} {pieces}, each of {a} {u}. How many {base} do they make together?",
            "One {piece} is {a} {u}. How many {base} are {b} of them?",
            "{name} needs {a} {u} of {stuff} every day. How many {base} are needed for {b} days?",
            "{b} people get {a} {u} of {stuff} each. How many {base} do they get altogether?",
            "Every week {name} uses {a} {u} of {stuff}. How many {base} is that in {b} weeks?",
            "A single {piece} comes to {a} {u}. What do {b} such {pieces} come to, in {base}?",
            "{name} buys {a} {u} of {stuff} on each of {b} days. How many {base} does {name} buy?",
            "A shop sells {b} {pieces}. Each has {a} {u}. How many {base} are sold in total?",
            "It takes {a} {u} of {stuff} to finish one job. How many {base} do {b} jobs take?",
            "{name} repeats {a} {u} of {stuff} {b} times. What is the total in {base}?",
            "Each of {b} friends brings {a} {u} of {stuff}. How many {base} of {stuff} do they have?",
            "The {pieces} are all {a} {u}. {name} counts {b}. How many {base} do they have together?",
            "A room takes {a} {u} of {stuff}. How many {base} do {b} equal rooms take?",
            "{name} orders {b} {pieces}, and every one holds {a} {u}. How many {base} are ordered?",
            "Multiply {a} {u} of {stuff} by {b}. How many {base} is that?",
            "A team handles {a} {u} of {stuff} an hour. How many {base} does it handle in {b} hours?",
            "In one box there are {a} {u} of {stuff}. How many {base} are in {b} boxes?",
            "{name} does {a} {u} in one round. How many {base} are {b} rounds?",
            "Per month the house needs {a} {u} of {stuff}. How many {base} does it need for {b} months?",
            "{b} {pieces} stand in a row. Each one counts {a} {u}. How many {base} is the whole row?",
            "If one {piece} is {a} {u}, how many {base} are {b} {pieces}?",
            "A machine makes {a} {u} of {stuff} in a minute. How many {base} does it make in {b} minutes?",
            "Each guest is given {a} {u} of {stuff}. There are {b} guests. How many {base} are given out?",
            "{name} fills {b} {pieces} with {a} {u} each. How many {base} are filled in altogether?",
            "How many {base} are {b} portions of {a} {u} of {stuff}?",
            "What is {b} times {a} {u} of {stuff}, in {base}?",
            "{b} loads of {a} {u} of {stuff} come to how many {base}?",
            "{b} similar {pieces} lie on a table. Any of them is {a} {u}. How many {base} lie there in all?",
            "{name} spends {a} {u} of {stuff} a month. How many {base} does {name} spend in {b} months?",
        ),
        (
            "A package has {b} {pieces}, and every {piece} measures {a} {u}. Give the total in {base}.",
            "What are {b} lots of {a} {u} of {stuff} in {base}?",
            "{name} goes through {a} {u} of {stuff} a year. How many {base} go in {b} years?",
            "All {b} workers carry {a} {u} of {stuff} apiece. How many {base} do they carry in total?",
            "For one costume {name} takes {a} {u} of {stuff}. How many {base} are taken for {b} costumes?",
            "{b} identical {pieces} arrive. One of them is {a} {u}. How many {base} arrive in all?",
            "Each class receives {a} {u} of {stuff}. How many {base} do {b} classes receive altogether?",
            "A crew lays {a} {u} of {stuff} per shift. How many {base} will {b} shifts give?",
            "{name} sells {b} {pieces} of {a} {u} each. What is the total amount in {base}?",
            "In every one of {b} sheds there are {a} {u} of {stuff}. How many {base} are there together?",
        ),
    ),
    UnitStory(
        "share",
        3,
        "{u}/{b}",
        (
            "{name} shares {a} {u} of {stuff} equally among {b} people. How many {base} does each get?",
            "{a} {u} of {stuff} are cut into {b} equal parts. How many {base} is one part?",
            "{b} friends split {a} {u} of {stuff} evenly. How many {base} does each friend have?",
            "Divide {a} {u} of {stuff} by {b}. How many {base} is that?",
            "{name} uses up {a} {u} of {stuff} in {b} days, the same amount each day. How many {base} is that a day?",
            "{a} {u} of {stuff} fill {b} {pieces} equally. How many {base} are in one {piece}?",
            "All {b} {pieces} together are {a} {u}. They are equal. How many {base} is one {piece}?",
            "From {a} {u} of {stuff} {name} makes {b} equal {pieces}. How many {base} is each?",
            "A load of {a} {u} of {stuff} is spread evenly over {b} trucks. How many {base} does each truck carry?",
            "{b} families divide {a} {u} of {stuff} among them. How many {base} does one family get?",
            "In {b} hours a machine makes {a} {u} of {stuff}. How many {base} does it make in one hour?",
            "{name} gives {a} {u} of {stuff} to {b} children in equal shares. How many {base} is one share?",
            "{a} {u} of {stuff} last {b} weeks. How many {base} are used per week?",
            "What is one of {b} equal portions of {a} {u} of {stuff}, in {base}?",
            "{b} rows are made from {a} {u} of {stuff}. How many {base} go into each row?",
            "The total of {b} equal {pieces} is {a} {u}. How many {base} does a single {piece} have?",
            "{name} breaks {a} {u} of {stuff} into {b} equal lengths or heaps. How many {base} has each of them?",
            "A supply of {a} {u} of {stuff} must serve {b} rooms alike. How many {base} are there for each room?",
            "{b} workers have {a} {u} of {stuff} to handle, all the same amount. How many {base} does each handle?",
            "On average, how many {base} a day is {a} {u} of {stuff} in {b} days?",
            "Split into {b} equal pieces, how many {base} does each piece of {a} {u} of {stuff} have?",
            "{a} {u} of {stuff} are handed out to {b} guests, each the same. How many {base} does a guest receive?",
            "If {b} {pieces} hold {a} {u} in all, how many {base} does one hold?",
            "{name} packs {a} {u} of {stuff} into {b} boxes of the same size. How many {base} are in each box?",
            "{a} {u} of {stuff} cost nothing and go to {b} shops in equal amounts. How many {base} per shop?",
        ),
        (
            "{b} teams share out {a} {u} of {stuff} fairly. How many {base} are there for each team?",
            "{name} cuts {a} {u} of {stuff} into {b} equal strips or lots. What is each one in {base}?",
            "How many {base} does each of {b} pupils get when {a} {u} of {stuff} are divided equally?",
            "{a} {u} of {stuff} are distributed evenly over {b} shelves. How many {base} lie on one shelf?",
            "A stock of {a} {u} of {stuff} runs out after {b} days of equal use. How many {base} went each day?",
            "{name} turns {a} {u} of {stuff} into {b} portions of equal size. Give one portion in {base}.",
            "{b} equal {pieces} have {a} {u} in total. Give the {base} of one {piece}.",
            "Over {b} years a farm used {a} {u} of {stuff}, equally every year. How many {base} per year?",
            "{a} {u} of {stuff} are to be divided between {b} towns. How many {base} does every town get?",
            "When {b} cooks split {a} {u} of {stuff} equally, how many {base} does one cook have?",
        ),
    ),
    UnitStory(
        "plus",
        4,
        "{u}+{b}",
        tuple(wording.replace("{v}", "{base}") for wording in _SUMS[:_SAME_UNIT]),
        tuple(wording.replace("{v}", "{base}") for wording in _HELD_OUT_SUMS),
    ),
    UnitStory(
        "minus",
        4,
        "{u}-{b}",
        (
            "{name} has {a} {u} of {stuff} and uses {b} {base}. How many {base} are left?",
            "From {a} {u} of {stuff} {name} takes away {b} {base}. How many {base} remain?",
            "There were {a} {u} of {stuff}, and {b} {base} went out. How many {base} are there now?",
            "{name} buys {a} {u} of {stuff} and gives {b} {base} of it away. How many {base} does {name} keep?",
            "A {piece} of {a} {u} is made {b} {base} smaller. How many {base} does it have now?",
            "A store has {a} {u} of {stuff}. {b} {base} are sold. How many {base} does it have then?",
            "What is {a} {u} of {stuff} less {b} {base}, in {base}?",
            "{name} loses {b} {base} of {a} {u} of {stuff}. How many {base} does {name} still have?",
            "{a} {u} of {stuff} shrink by {b} {base}. How many {base} are there in the end?",
            "Of {a} {u} of {stuff}, {b} {base} are spoiled. How many {base} are good?",
            "{name} cuts {b} {base} off {a} {u} of {stuff}. How many {base} are left over?",
            "{name} needs {a} {u} of {stuff} and has only {b} {base}. How many {base} are missing?",
            "One {piece} is {a} {u}, the other {b} {base}. How many {base} more is the first?",
            "{name} sells {b} {base} from a stock of {a} {u} of {stuff}. How many {base} stay in stock?",
            "The job takes {a} {u} of {stuff}, and {b} {base} are done. How many {base} are still to do?",
            "Take {b} {base} off {a} {u} of {stuff}. How many {base} is that?",
            "A plan asks for {a} {u} of {stuff} minus {b} {base}. How many {base} does it ask for?",
            "{name} had {a} {u} of {stuff}, but {b} {base} were stolen. How many {base} are left?",
            "{name} takes {b} {base} less than {a} {u} of {stuff}. How many {base} does {name} take?",
            "The new {piece} is {b} {base} less than the old one of {a} {u}. How many {base} is the new one?",
            "What is the difference between {a} {u} and {b} {base} of {stuff}, in {base}?",
            "With {b} {base} removed, how many {base} are {a} {u} of {stuff}?",
            "After {name} spent {b} {base} of the {a} {u} of {stuff}, how many {base} remained?",
            "{a} {u} of {stuff} were ordered, and {b} {base} did not come. How many {base} came?",
            "{name} returns {b} {base} of {a} {u} of {stuff} to the shop. How many {base} does {name} still have?",
            "A tenth helper carries off {b} {base} of {a} {u} of {stuff}. How many {base} remain there?",
        ),
        (
            "{name} owned {a} {u} of {stuff} and gave {b} {base} to a friend. How many {base} does {name} have left?",
            "A farm had {a} {u} of {stuff} and sold {b} {base} of it. How many {base} does it still have?",
            "Out of {a} {u} of {stuff}, {b} {base} were thrown away. How many {base} are left?",
            "{name} must do {a} {u} and has finished {b} {base}. How many {base} are still missing?",
            "A shelf has {a} {u} of {stuff}; {name} takes {b} {base} from it. How many {base} stay on the shelf?",
            "An order of {a} {u} of {stuff} is lowered by {b} {base}. How many {base} is the order now?",
            "In spring there were {a} {u} of {stuff}, but {b} {base} were lost. How many {base} remained?",
            "How many {base} are {a} {u} of {stuff} without {b} {base}?",
            "{name} removes {b} {base} from {a} {u} of {stuff}. How many {base} remain?",
            "{b} {base} of the {a} {u} of {stuff} are used up. How many {base} are not used?",
        ),
    ),
    UnitStory(
        "convert",
        3,
        "{u}/{v}",
        (
            "How many {v} are {a} {u} of {stuff}?",
            "{name} has {a} {u} of {stuff}. Tell it in {v}.",
            "Change {a} {u} of {stuff} into {v}. How many are they?",
            "A label says {a} {u} of {stuff}. What does it say in {v}?",
        ),
        (
            "{name} measures {a} {u} of {stuff}. How much is that in {v}?",
            "Express {a} {u} of {stuff} in {v}.",
        ),
        ("{a} {u}", "1 {one_v}"),
    ),
)
"""All kinds of questions."""


@dataclass(frozen=True)
class Stuff:
    """Material that is measured, and the word for a piece of it."""

    stuff: str
    piece: str
    pieces: str


STUFF: Final[Mapping[str, tuple[Stuff, ...]]] = {
    "centimetres": (
        Stuff("ribbon", "strip", "strips"),
        Stuff("wire", "wire", "wires"),
        Stuff("tape", "stripe", "stripes"),
    ),
    "metres": (
        Stuff("rope", "rope", "ropes"),
        Stuff("cable", "cable", "cables"),
        Stuff("fence", "fence", "fences"),
    ),
    "kilometres": (
        Stuff("road", "trip", "trips"),
        Stuff("track", "lap", "laps"),
        Stuff("pipeline", "line", "lines"),
    ),
    "kilograms": (
        Stuff("flour", "sack", "sacks"),
        Stuff("sand", "crate", "crates"),
        Stuff("coal", "bag", "bags"),
    ),
    "litres": (
        Stuff("water", "can", "cans"),
        Stuff("paint", "bucket", "buckets"),
        Stuff("milk", "tank", "tanks"),
    ),
}
"""Stuff of the splits `train` and `val`, by metric unit."""

HELD_OUT_STUFF: Final[Mapping[str, tuple[Stuff, ...]]] = {
    "centimetres": (Stuff("lace", "band", "bands"), Stuff("thread", "thread", "threads")),
    "metres": (Stuff("hose", "hose", "hoses"), Stuff("cloth", "sheet", "sheets")),
    "kilometres": (Stuff("trail", "tour", "tours"), Stuff("canal", "canal", "canals")),
    "kilograms": (Stuff("rice", "pack", "packs"), Stuff("wool", "bale", "bales")),
    "litres": (Stuff("oil", "jar", "jars"), Stuff("juice", "barrel", "barrels")),
}
"""Stuff of the split `test`."""


TRANSFER_STORIES: Final = (
    UnitStory(
        "transfer",
        1,
        "{u}*{b}",
        (),
        ("A diver goes down {a} {u}, a whale {b} times as deep. How deep is it in {base}?",),
        ("{a} {u}",),
        "metres",
    ),
    UnitStory(
        "transfer",
        1,
        "{u}*{b}",
        (),
        ("Each of {b} journeys takes {a} {u}. For how many {base} is {name} away?",),
        ("{a} {u}",),
        "days",
    ),
    UnitStory(
        "transfer",
        2,
        "{u}-{b}",
        (),
        ("A jar holds {a} {u} of saffron. {name} uses {b} {base}. How many {base} are left?",),
        ("{a} {u}",),
        "grams",
    ),
    UnitStory(
        "transfer",
        2,
        "{u}+{v}",
        (),
        ("{name} worked {a} {u} in Lima and {b} {u} in Quito. How many {base} was that?",),
        ("{a} {u}", "{b} {u}"),
        "days",
    ),
    UnitStory(
        "transfer",
        3,
        "{u}/{v}",
        (),
        ("A field is {a} {u} long. What is its length in {v}?",),
        ("{a} {u}", "1 {one_v}"),
        "metres",
    ),
    UnitStory(
        "transfer",
        3,
        "{u}/{v}",
        (),
        ("A gem dealer weighs {a} {u} of gold. What does the scale show in {v}?",),
        ("{a} {u}", "1 {one_v}"),
        "grams",
    ),
    UnitStory(
        "transfer",
        4,
        "{u}-{v}",
        (),
        ("A cable is {a} {u} long, and {name} cuts off {b} {v}. How many {base} are left?",),
        ("{a} {u}", "{b} {v}"),
        "metres",
    ),
)
"""Stories of the split `transfer`: kinds of units, and operations, that no other split has."""
