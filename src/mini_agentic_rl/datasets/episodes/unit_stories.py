"""Stories about units: what is told, and the expression that answers it.

`{a}`, `{b}`, `{c}` are numbers; `{u}` and `{v}` are units in words, and in expressions their factors; `{base}` is the
metric unit of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class UnitStory:
    """A story of one level about units of one kind."""

    level: int
    base: str
    expression: str
    phrasings: tuple[str, ...]

    @property
    def takes_two(self) -> bool:
        """Return True if the story is about two units."""
        return "{v}" in self.expression


def _lengths(base: str, thing: str, other: str) -> tuple[UnitStory, ...]:
    """Return the stories about things that are measured in one kind of units."""
    return (
        UnitStory(
            1,
            base,
            "{a}*{c}*{u}",
            (
                f"{{name}} has {{c}} {thing} of {{a}} {{u}} each. How many {{base}} is that in all?",
                f"There are {{c}} {thing}, each of {{a}} {{u}}. How many {{base}} do they make together?",
            ),
        ),
        UnitStory(
            2,
            base,
            "{a}*{u}+{b}",
            (
                f"{{name}} has {{a}} {{u}} of {other} and gets {{b}} {{base}} more. How many {{base}} is that now?",
                f"To {{a}} {{u}} of {other} {{name}} adds {{b}} {{base}}. How many {{base}} are there?",
            ),
        ),
        UnitStory(
            2,
            base,
            "{a}*{u}/{c}",
            (f"{{name}} shares {{a}} {{u}} of {other} equally among {{c}} people. How many {{base}} does each get?",),
        ),
        UnitStory(
            3,
            base,
            "{a}*{u}/{v}",
            (f"How many {{v}} are {{a}} {{u}} of {other}?", f"{{name}} has {{a}} {{u}} of {other}. Tell it in {{v}}."),
        ),
        UnitStory(
            4,
            base,
            "{a}*{u}+{b}*{v}",
            (
                f"{{name}} puts {{a}} {{u}} and {{b}} {{v}} of {other} together. How many {{base}} is that?",
                f"One part is {{a}} {{u}} of {other}, another {{b}} {{v}}. How many {{base}} are both?",
            ),
        ),
    )


STORIES: Final = (
    *_lengths("centimetres", "strips", "ribbon"),
    *_lengths("metres", "ropes", "rope"),
    *_lengths("kilometres", "trips", "road"),
    *_lengths("kilograms", "sacks", "flour"),
    *_lengths("litres", "cans", "water"),
)
"""Stories to train on."""

OTHER_STORIES: Final = (
    UnitStory(
        1,
        "metres",
        "{a}*{c}*{u}",
        ("A diver goes down {a} {u}, a whale {c} times as deep. How many {base} deep is the whale?",),
    ),
    UnitStory(
        1,
        "days",
        "{a}*{c}*{u}",
        ("Each of {c} journeys takes {name} {a} {u}. For how many {base} is {name} away?",),
    ),
    UnitStory(
        2,
        "grams",
        "{a}*{u}-{c}",
        ("A jar holds {a} {u} of saffron. {name} uses {c} {base}. How many {base} are still in it?",),
    ),
    UnitStory(
        2,
        "days",
        "({a}+{b})*{u}",
        ("{name} worked {a} {u} in Lima and {b} {u} in Quito. How many {base} was that?",),
    ),
    UnitStory(3, "metres", "{a}*{u}/{v}", ("A field is {a} {u} long. What is its length in {v}?",)),
    UnitStory(3, "grams", "{a}*{u}/{v}", ("A gem dealer weighs {a} {u} of gold. What does the scale show in {v}?",)),
    UnitStory(
        4,
        "metres",
        "{a}*{u}-{b}*{v}",
        ("A cable is {a} {u} long, and {name} cuts off {b} {v}. How many {base} are left?",),
    ),
)
"""Stories that are never trained, some with operations that no story to train on has."""
