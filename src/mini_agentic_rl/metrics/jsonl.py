"""`metrics.jsonl`: one JSON object a line, `{"time": …, "phase": …, "step": …, metric: number, …}`.

Every line is flushed, so a killed run loses at most the line that it was writing. Opening the file again cuts off an
incomplete line; resuming also cuts off the rows after the last checkpoint, so that no step appears twice. Rows that do
not fit on a full disk are kept and written later. A number that is not finite is written as null, which is valid JSON.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .base import MetricsLogger

logger = logging.getLogger(__name__)


class JsonlLogger(MetricsLogger):
    """Appends to a JSON-lines file.

    Args:
        path: path of the file; its folder must exist.
        keep_rows: number of rows to keep; later ones are cut off. None keeps every complete line.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | Path, *, keep_rows: int | None = None) -> None:
        self.path = Path(path)
        self._phase: str | None = None
        self._failed = False
        if self.path.exists():
            self._trim(keep_rows)
        self._file = self.path.open("a", encoding="utf-8")

    def phase(self, name: str, total: int | None = None) -> None:
        self._phase = name

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        row: dict[str, Any] = {"time": round(time.time(), 3), "phase": self._phase, "step": step}
        for name, value in metrics.items():  # of numpy too
            number = value if isinstance(value, int) else float(value)
            row[name] = number if math.isfinite(number) else None
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        try:
            self._file.flush()
        except OSError as error:
            if not self._failed:
                logger.error("metrics not written to %s (%s); kept until there is room", self.path, error.strerror)
            self._failed = True
        else:
            self._failed = False

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            logger.error("the last metrics were not written to %s: %s", self.path, error.strerror)

    def _trim(self, keep_rows: int | None) -> None:
        end = 0
        for number, (position, _) in enumerate(_whole_rows(self.path), 1):
            if keep_rows is None or number <= keep_rows:
                end = position
        with self.path.open("r+b") as file:
            file.truncate(end)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a `metrics.jsonl` up to the first incomplete line; empty if there is no such file."""
    path = Path(path)
    return [row for _, row in _whole_rows(path)] if path.exists() else []


def _whole_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the end position of each row, and the row, up to the first incomplete line."""
    position = 0
    for line in path.read_bytes().splitlines(keepends=True):
        position += len(line)
        row = _parse(line)
        if row is None:
            return
        yield position, row


def rows_until(path: str | Path, step: int) -> int:
    """Return the number of rows of a `metrics.jsonl` up to the last one of at most this step."""
    return max((number for number, row in enumerate(read_metrics(path), 1) if row.get("step", 0) <= step), default=0)


def _parse(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
