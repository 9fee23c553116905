"""The reward of showing one's working, and showing it right."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from .base import Reward
from .equations import equations
from .extract import MAX_TEXT
from .samples import Sample

StepKind: TypeAlias = Literal["calculations", "marked"]

_MARKED = re.compile(
    r"[ \t>*#_-]{0,8}(?:step[ \t]*\d{1,3}\b|\d{1,3}[.):、][ \t]*\S|第[一二三四五六七八九十\d]{1,3}步|"
    r"(?:first|second|third|then|next|finally)\b|首先|其次|然后|接着|最后)",
    re.IGNORECASE,
)


def count_steps(text: str) -> int:
    """Lines that begin as a step does ("Step 1", "1.", "First", "第一步"), each text of a line once."""
    lines = text[-MAX_TEXT:].splitlines()
    return len({line.strip().casefold() for line in lines if _MARKED.match(line)})


class StepReward(Reward):
    """From 0 to 1: how much of the working there is, up to `expected` steps, and how much of it is right.

    With `calculations`, a step is one like "12 * 30 = 360"; wrong ones count against right ones: the reward is
    `right / max(expected, right + wrong)`. With `marked`, a step is a line that begins as one does, whatever it says:
    `min(steps, expected) / expected`. A step that is repeated counts once; steps beyond those expected gain nothing.
    """

    def __init__(self, *, expected: int = 1, kind: StepKind = "calculations", name: str = "steps") -> None:
        """
        Raises:
            ValueError: `expected` is below 1.
        """
        super().__init__(name)
        if expected < 1:
            raise ValueError(f"expected must be 1 or more, not {expected}")
        self.expected = expected
        self.kind = kind

    def score(self, sample: Sample) -> float | None:
        """The share."""
        if self.kind == "marked":
            return min(count_steps(sample.written), self.expected) / self.expected
        found = equations(sample.written)
        right = sum(equation.right for equation in found)
        return right / max(self.expected, len(found))
