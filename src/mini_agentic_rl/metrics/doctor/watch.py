"""The doctor beside a run: its view is kept up as rows are logged, in bounded space."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from .finding import Finding
from .rules import diagnose
from .view import Measured, RunView, StepNumbers

_KEPT: Final = 20
"""Steps that are kept of the beginning, and of the end."""


class RunWatch:
    """Looks at a run while it goes on."""

    def __init__(self) -> None:
        self._first: list[StepNumbers] = []
        self._last: deque[StepNumbers] = deque(maxlen=_KEPT)
        self._measured: list[Measured] = []
        self._probes: list[tuple[float, float]] = []

    def add(self, row: Mapping[str, Any]) -> list[Finding] | None:
        """Take a row of metrics, with its phase and step; return what the rules find now, None where it is no step of
        reinforcement learning and no measurement."""
        added = RunView.of_rows([row])
        self._measured += added.measured
        self._probes += added.probes
        for step in added.steps:
            if len(self._first) < _KEPT:
                self._first.append(step)
            else:
                self._last.append(step)
        if not (added.steps or added.measured):
            return None
        return diagnose(self.view)

    @property
    def view(self) -> RunView:
        """The part of the run that is kept."""
        return RunView([*self._first, *self._last], list(self._measured), probes=list(self._probes))
