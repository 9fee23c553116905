"""The result of one check of the installation or of the computer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

CheckState = Literal["ok", "note", "fault"]
"""A fault keeps something from working; a note is worth knowing."""


@dataclass(frozen=True)
class Check:
    """The result of a check."""

    name: str
    state: CheckState
    found: str
    """The state of things in words."""
    advice: str = ""
    """Advice on it; empty where nothing is to be done."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)
