"""A fault that a rule of the doctor has found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Level = Literal["fault", "watch"]
"""A fault keeps a run from learning, or spoils what it learns; what is to be watched may."""

_QUOTED: Final = re.compile(r"`([a-z_0-9]+)(?:=[^`]*)?`")


@dataclass(frozen=True)
class Finding:
    """One fault of a run, in words."""

    rule: str
    """Name of the rule, the same in every run."""
    level: Level
    title: str
    """The fault in a few words."""
    seen: str
    """The figures that show it."""
    advice: str
    """Advice on the change that helps, with the names of settings in backticks."""
    rollouts: tuple[str, ...] = ()
    """Ids of some rollouts that show it."""
    adapter: str = ""
    """The adapter that it is about, where several are trained."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings that the advice names."""
        return tuple(dict.fromkeys(_QUOTED.findall(self.advice)))

    @property
    def head(self) -> str:
        """The fault, and the adapter that it is about."""
        return f"adapter {self.adapter}: {self.title}" if self.adapter else self.title

    @property
    def body(self) -> str:
        """Figures and advice in one line."""
        return f"{self.seen}. {self.advice}."

    def as_json(self) -> Mapping[str, Any]:
        """Return it as JSON values, with the settings."""
        return {**asdict(self), "rollouts": list(self.rollouts), "settings": list(self.settings)}
