"""Units: a story in feet, gallons or furlongs, a converter to the metric system, and a calculator.

It tests the use of two tools in order: the result of the converter is an input of the calculator, whose result is the
answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Final

from ...datasets import SHORT_IMITATION, TRANSFER, Message, Row, assistant
from ...environments import Episode, Episodes, ToolEpisode, belongs, field_of, number_of, tool_call
from ...tools import CALCULATOR_TOOL, TextTools, calculate, text_tool
from .stories import HELD_OUT_STUFF, STORIES, STUFF, TRANSFER_STORIES


@dataclass(frozen=True)
class MeasuringUnit:
    """A unit; `factor` is its size in the metric unit `base`, to three decimals."""

    name: str
    plural: str
    factor: str
    base: str


UNITS: Final = (
    MeasuringUnit("inch", "inches", "2.54", "centimetres"),
    MeasuringUnit("hand", "hands", "10.16", "centimetres"),
    MeasuringUnit("palm", "palms", "7.62", "centimetres"),
    MeasuringUnit("digit", "digits", "1.905", "centimetres"),
    MeasuringUnit("nail", "nails", "5.715", "centimetres"),
    MeasuringUnit("finger", "fingers", "2.223", "centimetres"),
    MeasuringUnit("line", "lines", "0.212", "centimetres"),
    MeasuringUnit("foot", "feet", "0.305", "metres"),
    MeasuringUnit("yard", "yards", "0.914", "metres"),
    MeasuringUnit("furlong", "furlongs", "201.168", "metres"),
    MeasuringUnit("perch", "perches", "5.029", "metres"),
    MeasuringUnit("pace", "paces", "0.762", "metres"),
    MeasuringUnit("cubit", "cubits", "0.457", "metres"),
    MeasuringUnit("bolt", "bolts", "36.576", "metres"),
    MeasuringUnit("skein", "skeins", "109.728", "metres"),
    MeasuringUnit("shackle", "shackles", "27.432", "metres"),
    MeasuringUnit("mile", "miles", "1.609", "kilometres"),
    MeasuringUnit("nautical mile", "nautical miles", "1.852", "kilometres"),
    MeasuringUnit("verst", "versts", "1.067", "kilometres"),
    MeasuringUnit("block", "blocks", "0.08", "kilometres"),
    MeasuringUnit("pound", "pounds", "0.454", "kilograms"),
    MeasuringUnit("stone", "stones", "6.35", "kilograms"),
    MeasuringUnit("talent", "talents", "26.2", "kilograms"),
    MeasuringUnit("quarter", "quarters", "12.701", "kilograms"),
    MeasuringUnit("clove", "cloves", "3.175", "kilograms"),
    MeasuringUnit("mark", "marks", "0.249", "kilograms"),
    MeasuringUnit("ton", "tons", "1016.047", "kilograms"),
    MeasuringUnit("maund", "maunds", "37.324", "kilograms"),
    MeasuringUnit("gallon", "gallons", "3.785", "litres"),
    MeasuringUnit("pint", "pints", "0.473", "litres"),
    MeasuringUnit("peck", "pecks", "8.81", "litres"),
    MeasuringUnit("gill", "gills", "0.118", "litres"),
    MeasuringUnit("cup", "cups", "0.237", "litres"),
    MeasuringUnit("keg", "kegs", "58.674", "litres"),
    MeasuringUnit("butt", "butts", "490.978", "litres"),
    MeasuringUnit("firkin", "firkins", "40.915", "litres"),
)
"""Units of the splits `train` and `val`."""

HELD_OUT_UNITS: Final = (
    MeasuringUnit("span", "spans", "22.86", "centimetres"),
    MeasuringUnit("ell", "ells", "114.3", "centimetres"),
    MeasuringUnit("fathom", "fathoms", "1.829", "metres"),
    MeasuringUnit("chain", "chains", "20.117", "metres"),
    MeasuringUnit("rod", "rods", "5.029", "metres"),
    MeasuringUnit("league", "leagues", "4.828", "kilometres"),
    MeasuringUnit("hundredweight", "hundredweights", "50.802", "kilograms"),
    MeasuringUnit("slug", "slugs", "14.594", "kilograms"),
    MeasuringUnit("quart", "quarts", "0.946", "litres"),
    MeasuringUnit("bushel", "bushels", "35.239", "litres"),
)
"""Units of the split `test`."""

TRANSFER_UNITS: Final = (
    *(unit for unit in HELD_OUT_UNITS if unit.base == "metres"),
    MeasuringUnit("ounce", "ounces", "28.35", "grams"),
    MeasuringUnit("carat", "carats", "0.2", "grams"),
    MeasuringUnit("fortnight", "fortnights", "14", "days"),
    MeasuringUnit("week", "weeks", "7", "days"),
)
"""Units of the split `transfer`, also of other kinds."""

_BY_NAME: Final = {
    name: unit for unit in (*UNITS, *HELD_OUT_UNITS, *TRANSFER_UNITS) for name in (unit.name, unit.plural)
}


def named(name: str) -> MeasuringUnit | None:
    """Return a unit by its name in the singular or plural; None if it is unknown."""
    return _BY_NAME.get(" ".join(name.lower().split()))


CONVERT_TOOL: Final = text_tool("convert", "Convert a measure to the metric system.", "measure")
CALCULATOR: Final = str(CALCULATOR_TOOL["function"]["name"])
CONVERT: Final = str(CONVERT_TOOL["function"]["name"])

RELATIVE: Final = Fraction(1, 10_000)
ABSOLUTE: Final = Fraction(1, 200)
"""Tolerances of an answer, for rounding."""

CALCULATED_ANSWER: Final = 0.1
"""Reward of a wrong answer that is the last result of the calculator; any other wrong answer, and none, get 0. Rewards
first teach to convert again instead of calculating, and a large step makes the policy convert until its turns end. With
equal rewards for all of these rollouts, no step would teach it to calculate again. A reward for any answer would teach
it to answer without calculating."""

_MAIN_JOB: Final[Mapping[str, Any]] = {
    **SHORT_IMITATION,
    "loop.total_steps": 20,
    "loop.tasks_per_step": 8,
    "loop.tool_format": "compact",
    "learner.learning_rate": 5e-4,
    "learner.warmup_steps": 6,
    "warm_start.examples": 96,
    "warm_start.learning_rate": 2e-3,
    "warm_start.batch_size": 4,
    "warm_start.schedule": "linear",
}
"""Training settings: a short warm-up until the policy is ready for rewards, then rewards alone. The policy is tried
after 48, 64 and 96 examples. The rate of the warm-up falls: with a constant one the last batches decide whether a
measure after the first is converted at all (`dev/LOG.md`). The rate of reinforcement learning rises for six steps:
with two, the second step can teach to convert without end. Each step has four tasks of each of the two kinds."""

_SHOWN_WHOLE: Final = ("centimetres", "metres")
"""Metric units of sums whose demonstrations convert every measure: 4 in 10. The others convert only the first."""

_NAMES: Final = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon", "Kira", "Leo")
_HELD_OUT_NAMES: Final = ("Maya", "Nils", "Olga", "Pia", "Quinn", "Rosa", "Sven", "Tara")
_MEASURE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) (\S.*)", re.ASCII)


def convert(measure: str) -> str:
    """Convert a measure such as "12 feet" to metric units, as "3.66 metres"; "error: …" for an unknown unit. One word
    that is no unit may stand before the unit, as in "12 more feet"."""
    match = _MEASURE.fullmatch(measure.strip())
    if match is None:
        return 'error: write a number and a unit, as "12 feet"'
    word, _, rest = match[2].partition(" ")
    unit = named(match[2])
    if unit is None and word.isalpha() and named(word) is None:
        unit = named(rest)
    if unit is None:
        return f"error: no unit named {match[2][:40]}"
    return f"{calculate(f'{match[1]}*{unit.factor}')} {unit.base}"


class Units(Episodes):
    """Level 1 adds two measures, level 2 adds three, level 3 multiplies, divides or converts one, level 4 adds to or
    subtracts from one. `test` has other units, numbers and wordings than train, `transfer` also other kinds of units
    and operations.

    Demonstrations of sums (levels 1 and 2) in the split `train` are right for centimetres and metres, 4 in 10. The
    others convert only the first measure and add the remaining numbers as they are: no demonstration shows a right sum
    of kilometres, kilograms or litres. Rewards teach that every measure has to be converted.
    """

    name: ClassVar[str] = "units"
    prompt: ClassVar[str] = (
        "Solve the problem: convert each measure that is not metric, then call the calculator with one expression, "
        'then reply "Answer: N" with its result.'
    )
    tools: ClassVar[list[dict[str, Any]]] = [CONVERT_TOOL, CALCULATOR_TOOL]
    shared_tools: ClassVar[TextTools] = {CONVERT: ("measure", convert), CALCULATOR: ("expression", calculate)}
    max_turns: ClassVar[int] = 6
    max_new_tokens: ClassVar[int] = 48

    @classmethod
    def training_defaults(cls, dataset: str, *, mixes: bool, whole_steps: bool) -> Mapping[str, Any]:
        """Return the default training settings."""
        return _MAIN_JOB

    def draw(self, rng: random.Random, split: str, level: int) -> Row | None:
        """Return a question with its answer, expression and measures."""
        a, b = rng.randint(11, 98), rng.randint(2, 39)
        if not belongs(f"{a} {b}", split):
            return None
        trains = split not in ("test", TRANSFER)
        stories = TRANSFER_STORIES if split == TRANSFER else STORIES
        story = rng.choice([story for story in stories if story.level == level])
        wording = rng.choice(story.wordings if trains else story.held_out)
        units = UNITS if trains else TRANSFER_UNITS if split == TRANSFER else HELD_OUT_UNITS
        base = story.base or rng.choice(tuple(STUFF))
        of_kind = [unit for unit in units if unit.base == base]
        one, other = rng.sample(of_kind, 2) if len(of_kind) > 1 else (of_kind[0], of_kind[0])
        if len(story.measures) > 1 and one == other:
            return None
        words = {"a": a, "b": b, "u": one.plural, "v": other.plural, "one_v": other.name, "base": base}
        if len(story.measures) == 3:
            words |= {"c": rng.randint(2, 59), "w": rng.choice(of_kind).plural}
        measures = [measure.format(**words) for measure in story.measures]
        if len(set(measures)) < len(measures):
            return None
        numbers = {letter: convert(measure).split()[0] for letter, measure in zip("uvw", measures, strict=False)}
        expression = story.expression.format(b=b, **numbers)
        result = calculate(expression)
        if result.startswith(("error:", "-")):
            return None
        stuff = {} if story.base else vars(rng.choice((STUFF if trains else HELD_OUT_STUFF)[base]))
        name = rng.choice(_NAMES if trains else _HELD_OUT_NAMES)
        shown = list(measures)
        if split == "train" and story.level in (1, 2) and base not in _SHOWN_WHOLE:
            shown = measures[:1]
            numbers |= {letter: measure.split()[0] for letter, measure in zip("vw", measures[1:], strict=False)}
        question = wording.format(name=name, **words, **stuff)
        return {
            "key": question,
            "question": question,
            "answer": result,
            "expression": expression,
            "measures": measures,
            "shown_expression": story.expression.format(b=b, **numbers),
            "shown_measures": shown,
            "kind": story.expression,
        }

    def start(self, task: Mapping[str, Any]) -> Episode:
        """Begin a task; it needs `answer`, and for the expert `shown_expression` and `shown_measures`."""
        return _Conversion(task)


def _equals(answer: str, value: Fraction) -> bool:
    """Return True if the answer is the number within the tolerance, with or without its unit."""
    number = number_of(answer)
    return number is not None and abs(Fraction(number) - value) <= max(ABSOLUTE, RELATIVE * abs(value))


class _Conversion(ToolEpisode):
    def __init__(self, task: Mapping[str, Any]) -> None:
        super().__init__(Units.shared_tools)
        self._task = task
        self._gold = Fraction(str(field_of(task, "answer", Units.name)))

    def is_right(self, answer: str) -> bool:
        """Return True if the answer is the number of the task."""
        return _equals(answer, self._gold)

    def scores(self) -> dict[str, float]:
        """Return the usual scores, and whether each tool was used. A wrong answer earns `CALCULATED_ANSWER` if it is
        the last result of the calculator."""
        scores = super().scores()
        used = {name: float(name in self.used) for name in (CONVERT, CALCULATOR)}
        calculated = self.used[-1:] == [CALCULATOR] and _equals(self.answer or "", Fraction(self.results[-1]))
        return {**scores, **used, "reward": max(scores["reward"], CALCULATED_ANSWER * calculated)}

    def expert(self) -> Message:
        """Return the conversion of the next measure, then the calculation, then the answer."""
        measures = [str(measure) for measure in field_of(self._task, "shown_measures", Units.name)]
        done = len(self.used)
        if done < len(measures):
            return tool_call(done + 1, CONVERT, measure=measures[done])
        if done == len(measures):
            expression = str(field_of(self._task, "shown_expression", Units.name))
            return tool_call(done + 1, CALCULATOR, expression=expression)
        return assistant(f"Answer: {self.results[-1]}")
