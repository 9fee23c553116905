"""Units: a story in feet, gallons or furlongs, a table to look them up in, and a calculator.

It tests the use of two tools in order: what the table gives goes into the calculator, and what that gives is the
answer. The factors are those that define the units, so a result is exact.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, Final

from ...calculator import CALCULATOR_TOOL, calculate
from ..messages import Message, assistant
from ..rows import Row
from .episode import TRANSFER, Episode, Episodes, belongs, field_of, tool_call
from .replies import number_of
from .toolbox import ToolEpisode, text_tool
from .unit_stories import OTHER_STORIES, STORIES
from .unit_table import OTHER_UNITS, UNITS, MeasuringUnit, named

LOOKUP_TOOL: Final = text_tool("lookup_unit", "Tell what a unit is in the metric system.", "unit")
CALCULATOR: Final = str(CALCULATOR_TOOL["function"]["name"])
LOOKUP: Final = str(LOOKUP_TOOL["function"]["name"])

RELATIVE: Final = Fraction(1, 10_000)
"""A result may be off by this share of itself, or by half a hundredth: people round."""
ABSOLUTE: Final = Fraction(1, 200)

_NAMES: Final = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon", "Kira", "Leo")


class Units(Episodes):
    """Level 1 has one unit and a product, level 2 a sum, difference or share in the metric system, level 3 asks for one
    unit in another, level 4 adds two. `transfer` has units and stories that train never has."""

    name: ClassVar[str] = "units"
    prompt: ClassVar[str] = (
        "Solve the problem: look up each unit, then call the calculator with one expression, "
        'then reply "Answer: N" with its result.'
    )
    tools: ClassVar[list[dict[str, Any]]] = [LOOKUP_TOOL, CALCULATOR_TOOL]
    max_turns: ClassVar[int] = 5
    max_new_tokens: ClassVar[int] = 48

    def draw(self, rng: random.Random, split: str, level: int) -> Row | None:
        """Return a story, its units and its expression."""
        stories, units = (OTHER_STORIES, OTHER_UNITS) if split == TRANSFER else (STORIES, UNITS)
        story = rng.choice([one for one in stories if one.level == level])
        of_kind = [unit for unit in units if unit.base == story.base]
        one, other = rng.sample(of_kind, 2) if len(of_kind) > 1 else (of_kind[0], of_kind[0])
        a, b, c = (rng.randint(*bounds) for bounds in ((11, 98), (3, 39), (2, 9)))
        if not belongs(f"{a} {one.name}", split) or (story.takes_two and one == other):
            return None
        factors = {"u": one.factor, "v": other.factor}
        expression = story.expression.format(a=a, b=b, c=c, **factors)
        result = calculate(expression)
        if result.startswith(("error:", "-")):
            return None
        words = {"u": one.plural, "v": other.plural, "one_u": one.name, "one_v": other.name}
        question = rng.choice(story.phrasings).format(a=a, b=b, c=c, name=rng.choice(_NAMES), base=story.base, **words)
        return {
            "key": question,
            "question": question,
            "answer": result,
            "expression": expression,
            "units": [one.name, other.name] if story.takes_two else [one.name],
        }

    def start(self, task: Mapping[str, Any]) -> Episode:
        """Begin a task; it needs `answer`, and to be shown also `expression` and `units`."""
        return _Conversion(task)


class _Conversion(ToolEpisode):
    def __init__(self, task: Mapping[str, Any]) -> None:
        super().__init__({LOOKUP: ("unit", lookup_unit), CALCULATOR: ("expression", calculate)})
        self._task = task
        self._gold = Fraction(str(field_of(task, "answer", Units.name)))

    def is_right(self, answer: str) -> bool:
        """Return True if the answer is the number, rounded or not, with or without its unit."""
        said = number_of(answer)
        if said is None:
            return False
        return abs(Fraction(said) - self._gold) <= max(ABSOLUTE, RELATIVE * abs(self._gold))

    def scores(self) -> dict[str, float]:
        """Return the usual scores, and whether each tool was used."""
        used = {name: float(name in self.used) for name in (LOOKUP, CALCULATOR)}
        return {**super().scores(), **used}

    def expert(self) -> Message:
        """Return the next of: each unit looked up, the expression, the answer."""
        units = [str(unit) for unit in field_of(self._task, "units", Units.name)]
        done = len(self.used)
        if done < len(units):
            return tool_call(done + 1, LOOKUP, unit=units[done])
        if done == len(units):
            expression = str(field_of(self._task, "expression", Units.name))
            return tool_call(done + 1, CALCULATOR, expression=expression)
        return assistant(f"Answer: {self.results[-1]}")


def lookup_unit(name: str) -> str:
    """Return the line of the table about a unit, or "error: …"."""
    unit: MeasuringUnit | None = named(name)
    if unit is None:
        return f"error: no unit named {name[:40]}"
    return f"1 {unit.name} = {unit.factor} {unit.base}"
