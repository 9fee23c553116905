"""Answer quality without a reward model: does the reply state the values that the gold query gives?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ...sql_conversation import Cell, cell_text
from .execution import same_cell

ROOM: Final = 200
"""Characters that a reply may have beyond three times those of the values: a reply that lists everything says
nothing."""

_NUMBER: Final = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?![\w])|(?<=[\u4e00-\u9fff])\d+(?:\.\d+)?")
_ASCII: Final = re.compile(r"[\x00-\x7f]+")


def states_values(reply: str, rows: Sequence[Sequence[Cell]]) -> float:
    """The share of the values in `rows` that `reply` states, from 0 to 1; 0 for a reply that is much too long."""
    values = {cell_text(cell): cell for row in rows for cell in row if cell is not None}
    if not values or len(reply) > ROOM + 3 * sum(map(len, values)):
        return 0.0
    numbers = [float(found.replace(",", "")) for found in _NUMBER.findall(reply)]
    stated = sum(_states(reply, numbers, text, value) for text, value in values.items())
    return stated / len(values)


def _states(reply: str, numbers: Sequence[float], text: str, value: Cell) -> bool:
    if isinstance(value, int | float):
        return any(same_cell(float(value), number) for number in numbers)
    if _ASCII.fullmatch(text):  # a word of its own, not the beginning of another
        return re.search(rf"(?<![a-z0-9]){re.escape(text.lower())}(?![a-z0-9])", reply.lower()) is not None
    return text in reply
