"""Corrupted solutions, for preferences whose better answer is known: each is a right solution with one error.

A corruption is a function of a random generator and a `Case`; it gives None where the case has no place for it. Those
of `WRONG` change the answer, those of `UNFIT` leave a reader without one answer in the asked-for form.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from ...rewards import is_correct, parse_number, plain_number
from .worked import Operation, Worked, operations, plan_of, results, working

_SWAPPED = {"+": "-", "-": "+", "*": "+", "/": "*"}
_EVASIONS = (
    "I am not sure. It depends on the details.",
    "That is hard to say without a calculator.",
    "This is a nice problem. Let me know if you need anything else!",
    "The question cannot be answered with what is given.",
)
_FINAL_NUMBER = re.compile(r"(?<![\d.,])-?\$?\d[\d,]*(?:\.\d+)?(?!.*\d)", re.DOTALL)


@dataclass(frozen=True)
class Case:
    """A problem with its right solution, and that of another problem."""

    row: Mapping[str, Any]
    right: Worked
    other: Worked

    @property
    def steps(self) -> list[Operation]:
        """Return the operations of the solution; none where the row has no expression."""
        expression = self.row.get("expression")
        return operations(str(expression)) if expression else []


Corruption: TypeAlias = Callable[[random.Random, Case], str | None]


def wrong_operation(rng: random.Random, case: Case) -> str | None:
    """Replace one operation by another; the rest follows from it."""
    steps = case.steps
    if not steps:
        return None
    place = rng.randrange(len(steps))
    step = steps[place]
    steps[place] = Operation(_SWAPPED[step.symbol], step.left, step.right)
    return _recomputed(case, steps)


def misread_number(rng: random.Random, case: Case) -> str | None:
    """Read a number of the problem with one digit wrong; the rest follows from it."""
    steps = case.steps
    places = [(place, side) for place, step in enumerate(steps) for side in ("left", "right")
              if isinstance(getattr(step, side), Fraction)]  # fmt: skip
    if not places:
        return None
    place, side = rng.choice(places)
    step = steps[place]
    left, right = (
        _misread(rng, value) if name == side and isinstance(value, Fraction) else value
        for name, value in (("left", step.left), ("right", step.right))
    )
    steps[place] = Operation(step.symbol, left, right)
    return _recomputed(case, steps)


def calculation_slip(rng: random.Random, case: Case) -> str | None:
    """Put a wrong digit into one result; the rest follows from it."""
    steps = case.steps
    if not steps:
        return _slip_in_text(rng, case)
    place = rng.randrange(len(steps))
    return _recomputed(case, steps, {place: _misread(rng, results(steps)[place])})


def wrong_final_answer(rng: random.Random, case: Case) -> str | None:
    """Keep the right working, and give another number as the answer."""
    number = parse_number(case.right.answer)
    return None if number is None else Worked(case.right.lines, plain_number(_misread(rng, number.value))).text


def unfinished(rng: random.Random, case: Case) -> str | None:
    """Leave out the last steps: an intermediate result is given as the answer."""
    steps = case.steps
    if len(steps) < 2:
        return None
    kept = steps[: rng.randrange(1, len(steps))]
    values = results(kept)
    return Worked((*plan_of(case.row), *working(kept)), plain_number(values[-1])).text


def off_topic(rng: random.Random, case: Case) -> str | None:
    """Return the solution of another problem."""
    return case.other.text


def no_answer(rng: random.Random, case: Case) -> str | None:
    """Stop the working before there is an answer."""
    lines = case.right.lines[: max(1, len(case.right.lines) - rng.randrange(1, 3))]
    return "\n".join(lines) if lines and lines != case.right.lines else None


def contradictory(rng: random.Random, case: Case) -> str | None:
    """Give two different answers."""
    number = parse_number(case.right.answer)
    if number is None:
        return None
    other = plain_number(_misread(rng, number.value))
    return f"{case.right.text}\nNo, wait.\nAnswer: {other}"


def evasive(rng: random.Random, case: Case) -> str | None:
    """Return words in place of a solution."""
    return rng.choice(_EVASIONS)


def rambling(rng: random.Random, case: Case) -> str | None:
    """Repeat one line again and again, without an answer."""
    line = rng.choice(case.right.lines) if case.right.lines else "Let me think."
    return "\n".join((*case.right.lines[:1], *[line] * rng.randrange(5, 9)))


WRONG: dict[str, Corruption] = {
    "wrong_operation": wrong_operation,
    "misread_number": misread_number,
    "calculation_slip": calculation_slip,
    "wrong_final_answer": wrong_final_answer,
    "unfinished": unfinished,
    "off_topic": off_topic,
}
UNFIT: dict[str, Corruption] = {
    "no_answer": no_answer,
    "contradictory": contradictory,
    "evasive": evasive,
    "rambling": rambling,
}
CORRUPTIONS: dict[str, Corruption] = WRONG | UNFIT


def corrupted(rng: random.Random, case: Case) -> tuple[str, str]:
    """Return a corrupted solution and the name of the corruption, each as likely as any other that has a place."""
    names = rng.sample(list(CORRUPTIONS), len(CORRUPTIONS))
    for name in names:
        text = CORRUPTIONS[name](rng, case)
        if text is None or text == case.right.text:
            continue
        if name not in WRONG or not text.endswith(f"Answer: {case.right.answer}"):
            return text, name
    raise ValueError(f"row {case.row.get('id')!r} has no place for any corruption")


def _recomputed(case: Case, steps: list[Operation], slips: Mapping[int, Fraction] | None = None) -> str | None:
    try:
        values = results(steps, slips)
        lines = working(steps, slips)
    except ZeroDivisionError:
        return None
    if any(value.denominator not in (1, 2, 4, 5, 10, 20, 25, 50, 100) for value in values):
        return None
    if is_correct(plain_number(values[-1]), case.right.answer):  # within the tolerance of the right answer
        return None
    return Worked((*plan_of(case.row), *lines), plain_number(values[-1])).text


def _misread(rng: random.Random, value: Fraction) -> Fraction:
    """Return the number with another digit at one place; its first digit does not become 0."""
    text = plain_number(value)
    places = [at for at, character in enumerate(text) if character.isdigit()]
    at = rng.choice(places)
    leading = at == places[0] and len(places) > 1
    digits = [digit for digit in "0123456789" if digit != text[at] and not (leading and digit == "0")]
    return Fraction(text[:at] + rng.choice(digits) + text[at + 1 :])


def _slip_in_text(rng: random.Random, case: Case) -> str | None:
    """Put a wrong digit into the last number of a worked solution, and into the answer with it."""
    number = parse_number(case.right.answer)
    if number is None or not case.right.lines:
        return None
    wrong = plain_number(_misread(rng, number.value))
    last = _FINAL_NUMBER.sub(wrong, case.right.lines[-1], count=1)
    return Worked((*case.right.lines[:-1], last), wrong).text
