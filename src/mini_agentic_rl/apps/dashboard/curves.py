"""The curves of a run, from its `metrics.jsonl`, of which only what was added since the last look is read."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_MAX_POINTS: Final = 2000
"""Points of one curve that are sent; of longer ones the least and the greatest of each stretch."""
_TAIL: Final = 256
_NO_METRICS: Final = ("time", "phase", "step")


class Curves:
    """The numbers of a run by name. Used from any thread.

    Args:
        path: the file, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._read = 0
        self._tail = b""
        self._series: dict[str, tuple[list[float], list[float | None]]] = {}
        self._rows = 0
        self._last: dict[str, Any] = {}

    def view(self) -> dict[str, Any]:
        """Return `rows`, the `last` row's time, phase and step, and `series`: for each name its steps and its values,
        where null stands for a number that is not finite."""
        with self._lock:
            self._look()
            series = {name: thinned(steps, values) for name, (steps, values) in self._series.items()}
            return {"rows": self._rows, "last": dict(self._last), "series": series}

    def last(self) -> dict[str, Any]:
        """Return time, phase and step of the last row; empty where there is none."""
        with self._lock:
            self._look()
            return dict(self._last)

    def _look(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, self._read - len(self._tail)))
                if file.read(len(self._tail)) != self._tail:
                    self._forget()  # cut off and written anew, as a resumed run does
                    file.seek(0)
                added = file.read()
        except OSError:
            self._forget()
            return
        whole = added[: added.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._add(line)
        if whole:
            self._read += len(whole)
            self._tail = (self._tail + whole)[-_TAIL:]

    def _add(self, line: bytes) -> None:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(row, dict):
            return
        self._rows += 1
        step = row.get("step")
        step = float(step) if isinstance(step, int | float) else float(self._rows)
        self._last = {name: row.get(name) for name in _NO_METRICS}
        for name, value in row.items():
            if name not in _NO_METRICS and (value is None or isinstance(value, int | float)):
                steps, values = self._series.setdefault(name, ([], []))
                steps.append(step)
                values.append(None if value is None or not math.isfinite(value) else float(value))


def thinned(steps: Sequence[float], values: Sequence[float | None]) -> list[list[float | None]]:
    """Return steps and values of at most `_MAX_POINTS` points: the least and the greatest of each stretch."""
    if len(steps) <= _MAX_POINTS:
        return [list(steps), list(values)]
    stretch = math.ceil(2 * len(steps) / _MAX_POINTS)
    kept: list[int] = []
    for start in range(0, len(steps), stretch):
        there = [i for i in range(start, min(start + stretch, len(steps))) if values[i] is not None]
        if there:
            kept += sorted({min(there, key=lambda i: values[i] or 0.0), max(there, key=lambda i: values[i] or 0.0)})
    return [[steps[i] for i in kept], [values[i] for i in kept]]
