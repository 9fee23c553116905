"""A task data set by its name or path, as the commands take it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .arithmetic import ArithmeticDataset
from .gsm8k import load_gsm8k
from .gsm_symbolic import load_gsm_symbolic
from .jsonl import load_jsonl
from .rows import DatasetError, Split, TaskRows, check_split, choose, divide

NAMES: tuple[str, ...] = ("arithmetic", "gsm_symbolic", "gsm8k")
DEFAULT_SIZE = 1000
"""Rows of a generated data set when no size is given."""


def load_task_dataset(
    name_or_path: str | Path, split: Split | Literal["all"] = "train", size: int | None = None, seed: int = 0
) -> TaskRows:
    """Rows with `id`, `question` and `answer`.

    `name_or_path` is one of `NAMES`, a .jsonl file, or a folder with train.jsonl and test.jsonl in GSM8K's manner. A
    file is divided by its questions into train, val and test (8 : 1 : 1); the split "all", for files only, takes every
    row.
    Without a `size`, generated data sets have `DEFAULT_SIZE` rows and others all they hold.

    Raises:
        DatasetError: no such data set, split or file, or a malformed one.
        ImportError: the extra that the data set needs is not installed.
    """
    name = str(name_or_path)
    path = Path(name_or_path)
    if path.suffix in (".jsonl", ".json") or path.is_file():
        rows = load_jsonl(path)
        return choose(rows if split == "all" else divide(rows, split), size, seed)
    if name not in NAMES and not path.is_dir():
        raise DatasetError(
            f"--dataset {name!r} does not exist; choose {', '.join(NAMES)}, or give the path of a .jsonl file"
        )
    if split == "all":
        raise DatasetError('the split "all" is for .jsonl files; choose train, val or test')
    wanted = check_split(split)
    if name == "arithmetic":
        return ArithmeticDataset(wanted, DEFAULT_SIZE if size is None else size, seed)
    if name == "gsm_symbolic":
        return load_gsm_symbolic(wanted, DEFAULT_SIZE if size is None else size, seed)
    return load_gsm8k(wanted, size, seed, path=None if name == "gsm8k" else path)
