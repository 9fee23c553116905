"""The runs that a dashboard shows: each a folder, a store, or both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...store import RUN_STORE_FILE, LightningStore, SqlLightningStore
from ...trainer import RunFolder, wilson_interval
from .browse import Browser, SqliteBrowser, StoreBrowser
from .curves import Curves
from .views.token_text import TokenTexts, find_texts


class ShownRun:
    """One run.

    Args:
        name: what it is called in addresses; no two runs of a dashboard share one.
        browser: reads its store.
        folder: where it writes; None where only a store is known.
    """

    def __init__(self, name: str, browser: Browser, folder: Path | None = None) -> None:
        self.name = name
        self.browser = browser
        self.folder = None if folder is None else RunFolder(folder)
        self.curves = None if folder is None else Curves(self.folder.metrics_path if self.folder else folder)
        self._texts: TokenTexts | None = None
        self._looked = False
        self._intervals: tuple[tuple[int, int], list[dict[str, Any]]] = ((0, 0), [])

    def facts(self) -> dict[str, Any]:
        """Return what its folder says of it: its state, settings and summary, and where it was resumed."""
        facts: dict[str, Any] = {"name": self.name, "folder": None, "state": "store"}
        if self.folder is None or self.curves is None:
            return facts
        config, summary = _read(self.folder.read_config), _read(self.folder.read_summary)
        last = self.curves.last()
        return facts | {
            "folder": self.folder.path.name,
            "state": "finished" if summary else "unfinished" if config else "empty",
            "last": last,
            "config": config,
            "summary": summary,
            "resumes": self.folder.resumes(),
            "intervals": self._measured(self.folder.evaluations_path),
        }

    def _measured(self, path: Path) -> list[dict[str, Any]]:
        """Return the accuracy of each measurement with its interval; read again when its answers were written anew."""
        try:
            stat = path.stat()
            mark = (stat.st_mtime_ns, stat.st_size)
            if mark != self._intervals[0]:
                self._intervals = (mark, intervals_of(path))
        except OSError:
            return []
        return self._intervals[1]

    def texts(self) -> TokenTexts | None:
        """Return the texts of its tokens; None where its tokenizer is not on this computer. It is looked for once."""
        if not self._looked:
            config = {} if self.folder is None else _read(self.folder.read_config)
            self._texts = find_texts(None if self.folder is None else self.folder.path, config)
            self._looked = self._texts is not None or self.folder is None
        return self._texts


def run_sources(folders: Sequence[Path]) -> list[ShownRun]:
    """Return the runs of these folders, each under the folder's name.

    Raises:
        UserError: one of them is no folder of a run.
    """
    found: list[ShownRun] = []
    for folder in folders:
        path = folder.expanduser()
        if not path.is_dir():
            raise UserError(f"{folder}: there is no such folder; name the folders of runs", setting="runs")
        if not any((path / name).exists() for name in ("config.json", "metrics.jsonl", RUN_STORE_FILE)):
            raise UserError(f"{folder}: no run wrote this folder (no config.json, no {RUN_STORE_FILE})", setting="runs")
        name = _free(path.resolve().name, [one.name for one in found])
        found.append(ShownRun(name, SqliteBrowser(path / RUN_STORE_FILE), path))
    return found


def store_source(store: LightningStore, name: str = "store", *, owned: bool = False) -> ShownRun:
    """Return a store as a run without a folder.

    Args:
        store: an open one.
        owned: close it with the dashboard.
    """
    if isinstance(store, SqlLightningStore) and store.path is not None:
        return ShownRun(name, SqliteBrowser(store.path))
    return ShownRun(name, StoreBrowser(store, owned=owned))


def intervals_of(path: Path) -> list[dict[str, Any]]:
    """Return `name`, `step`, `accuracy`, `low`, `high` and `count` of the measurements in an `evaluations.jsonl`.

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
    found = []
    for (name, step), each in right.items():
        low, high = wilson_interval(sum(each), len(each))
        accuracy = sum(each) / len(each)
        found.append({"name": name, "step": step, "accuracy": accuracy, "low": low, "high": high, "count": len(each)})
    return found


def _free(name: str, taken: Sequence[str]) -> str:
    wanted = name or "run"
    number = 2
    while wanted in taken:
        wanted = f"{name}-{number}"
        number += 1
    return wanted


def _read(read: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = read()
    except UserError:  # damaged, or being written
        return {}
    return found
