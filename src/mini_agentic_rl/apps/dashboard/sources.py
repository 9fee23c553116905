"""The runs that a dashboard shows: each a folder, a store, or both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...errors import UserError
from ...metrics import read_metrics
from ...store import RUN_STORE_FILE, InMemoryLightningStore, LightningStore, LightningStoreStatistics, SqlLightningStore
from ...trainer import RunFolder, wilson_interval
from .views import TokenTexts, find_texts

_MAX_POINTS: Final = 2000
"""Points of one curve; longer curves are reduced to the least and the greatest point of each stretch."""
_COUNTING_SHARE: Final = 0.05
"""Share of the time that counting rollouts may take."""
_NO_METRICS: Final = ("time", "phase", "step")


def curves_view(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of `rows` and the `series`: steps and values by name, with None for values that are not
    finite."""
    series: dict[str, tuple[list[float], list[float | None]]] = {}
    for number, row in enumerate(rows, 1):
        step = row.get("step")
        for name, value in row.items():
            if name not in _NO_METRICS and (value is None or isinstance(value, int | float)):
                steps, values = series.setdefault(name, ([], []))
                steps.append(float(step) if isinstance(step, int | float) else float(number))
                values.append(None if value is None or not math.isfinite(value) else float(value))
    return {"rows": len(rows), "series": {name: thinned(steps, values) for name, (steps, values) in series.items()}}


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


class ShownRun:
    """One run: the folder that it writes, or a store without a folder.

    Args:
        name: Its name in addresses; no two runs of a dashboard share one.
        folder: Folder of the run. Its store is opened read-only as soon as the file exists.
        store: An open store, of a run without a folder.
        owned: Close this store with the run.
    """

    def __init__(
        self, name: str, folder: Path | None = None, *, store: LightningStore | None = None, owned: bool = False
    ) -> None:
        self.name = name
        self.folder = None if folder is None else RunFolder(folder)
        self._files: dict[Path, tuple[Any, list[dict[str, Any]]]] = {}
        """Content of files, with their inode, time and size when they were read."""
        self._store = store
        self._owned = owned or store is None
        self._store_path = store.path if isinstance(store, SqlLightningStore) else None
        if folder is not None:
            self._store_path = folder / RUN_STORE_FILE
        self._opened_file: tuple[int, int] | None = None
        """Device and inode of the store file that is open."""
        self._lock = threading.Lock()
        self._counts = LightningStoreStatistics()
        self._count_at = float("-inf")
        self._counting = asyncio.Lock()
        self._texts: TokenTexts | None = None
        self._looked = False

    async def store(self) -> LightningStore:
        """Return the store of the run; an empty one while the run has none.

        Raises:
            LightningStoreError: it cannot be read.
        """
        if self.folder is not None:
            await asyncio.to_thread(self._open)
        return self._store or InMemoryLightningStore()

    def _open(self) -> None:
        """Open the store file of the folder, again if another file has taken its place."""
        path = self._store_path
        assert path is not None  # there is a folder
        with self._lock:
            try:
                stat = path.stat()
                file: tuple[int, int] | None = (stat.st_dev, stat.st_ino)
            except OSError:
                file = None
            if file == self._opened_file:
                return
            if self._store is not None:
                asyncio.run(self._store.close())
                self._store = None
            if file is not None:
                self._store = SqlLightningStore(path, read_only=True, busy_timeout_seconds=5.0)
            self._opened_file = file

    async def close(self) -> None:
        """Close the store if the run has opened it, or owns it."""
        if self._store is not None and self._owned:
            await self._store.close()

    async def totals(self) -> dict[str, Any]:
        """Return the numbers of rollouts, of rollouts by status, and of spans. Some databases count row by row, so they
        may be of a short while ago."""
        store = await self.store()
        async with self._counting:
            begun = time.monotonic()
            if begun >= self._count_at:
                self._counts = await store.statistics()
                ended = time.monotonic()
                self._count_at = ended + (ended - begun) / _COUNTING_SHARE
        counts = self._counts
        return {
            "status": counts.get("rollouts_by_status", {}),
            "rollouts": counts.get("total_rollouts", 0),
            "spans": counts.get("total_spans", 0),
        }

    async def mark(self) -> str:
        """Return a text that changes when the run or its store has changed."""
        marks = [await asyncio.to_thread(self._files_mark)]
        if self._store_path is None:
            store = await self.store()
            newest = await store.list_rollouts(limit=1)
            marks.append(json.dumps(await self.totals()))
            marks += [f"{rollout.rollout_id} {rollout.status}" for rollout in newest.items]
        return " ".join(marks)

    def _files_mark(self) -> str:
        paths: list[Path] = []
        if self.folder is not None:
            paths += [self.folder.metrics_path, self.folder.summary_path]
        if self._store_path is not None:
            paths += [self._store_path, self._store_path.with_name(f"{self._store_path.name}-wal")]
        marks = []
        for path in paths:
            with contextlib.suppress(OSError):
                stat = path.stat()
                marks.append(f"{stat.st_mtime_ns}.{stat.st_size}")
        return " ".join(marks)

    def facts(self) -> dict[str, Any]:
        """Return the facts of its folder: state, settings, summary, and resumptions."""
        facts: dict[str, Any] = {"name": self.name, "folder": None, "state": "store"}
        if self.folder is None:
            return facts
        config, summary = _read(self.folder.read_config), _read(self.folder.read_summary)
        rows = self._cached(self.folder.metrics_path, read_metrics)
        last = {name: rows[-1].get(name) for name in _NO_METRICS} if rows else {}
        return facts | {
            "folder": self.folder.path.name,
            "state": "finished" if summary else "unfinished" if config else "empty",
            "last": last,
            "config": config,
            "summary": summary,
            "resumes": self.folder.resumes(),
            "intervals": self._cached(self.folder.evaluations_path, intervals_of),
        }

    def curves(self) -> dict[str, Any]:
        """Return the metrics of its folder; see `curves_view`."""
        return curves_view([] if self.folder is None else self._cached(self.folder.metrics_path, read_metrics))

    def _cached(self, path: Path, read: Callable[[Path], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the content of a file, read again when the file changes; nothing of a missing one."""
        try:
            stat = path.stat()
            mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if path not in self._files or self._files[path][0] != mark:
                self._files[path] = mark, read(path)
            return self._files[path][1]
        except OSError:
            return []

    def texts(self) -> TokenTexts | None:
        """Return the texts of its tokens; None if its tokenizer is not on this computer."""
        if not self._looked:
            config = {} if self.folder is None else _read(self.folder.read_config)
            self._texts = find_texts(None if self.folder is None else self.folder.path, config)
            self._looked = self._texts is not None or self.folder is None
        return self._texts


def run_sources(folders: Sequence[Path]) -> list[ShownRun]:
    """Return the runs of these folders, each under the folder's name.

    Raises:
        UserError: one of them is not the folder of a run.
    """
    sources: list[ShownRun] = []
    for folder in folders:
        path = folder.expanduser()
        if not path.is_dir():
            raise UserError(f"{folder}: there is no such folder; name the folder of a run")
        if not any((path / name).exists() for name in ("config.json", "metrics.jsonl", RUN_STORE_FILE)):
            raise UserError(f"{folder}: no run wrote this folder (no config.json, no {RUN_STORE_FILE})")
        name = _free(path.resolve().name, [source.name for source in sources])
        sources.append(ShownRun(name, path))
    return sources


def store_source(store: LightningStore, name: str = "store", *, owned: bool = False) -> ShownRun:
    """Return a store as a run without a folder.

    Args:
        store: An open store.
        name: Name of the run.
        owned: Close the store with the dashboard.
    """
    return ShownRun(name, store=store, owned=owned)


def intervals_of(path: Path) -> list[dict[str, Any]]:
    """Return `name`, `step`, `accuracy`, `low`, `high` and `count` of the evaluations in an `evaluations.jsonl`.

    Raises:
        OSError: it cannot be read.
    """
    right: dict[tuple[str, int], list[bool]] = {}
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
                right.setdefault((str(row["evaluation"]), int(row["step"])), []).append(bool(row["correct"]))
            except (ValueError, KeyError, TypeError):
                continue
    intervals = []
    for (name, step), each in right.items():
        low, high = wilson_interval(sum(each), len(each))
        accuracy = sum(each) / len(each)
        intervals.append(
            {"name": name, "step": step, "accuracy": accuracy, "low": low, "high": high, "count": len(each)}
        )
    return intervals


def _free(name: str, taken: Sequence[str]) -> str:
    wanted = name or "run"
    number = 2
    while wanted in taken:
        wanted = f"{name}-{number}"
        number += 1
    return wanted


def _read(read: Any) -> dict[str, Any]:
    try:
        content: dict[str, Any] = read()
    except UserError:  # damaged, or being written
        return {}
    return content
