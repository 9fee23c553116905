"""`UNSET`: an argument that was not given, where None is a value."""

from __future__ import annotations

import enum
from typing import Final


class Unset(enum.Enum):
    """Type of `UNSET`, the argument that leaves a field as it is, where None may be a value of the field."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
