"""A task data set by its name or path, as the commands take it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .arithmetic import LEVELS, ArithmeticDataset
from .gsm8k import load_gsm8k
from .gsm_symbolic import load_gsm_symbolic
from .hub import is_hub_name
from .records import SUFFIXES, is_data_file
from .rows import DatasetError, TaskRows, check_split, meant
from .sql import MedicalQuestions
from .tasks import load_tasks_of

NAMES: tuple[str, ...] = ("arithmetic", "gsm_symbolic", "gsm8k")
MEDICAL = "medical"
"""Questions with SQL queries, for the SQL agent alone."""
DEFAULT_SIZE = 1000
"""Rows of a generated data set when no size is given."""


def load_task_dataset(
    name_or_path: str | Path, split: str = "train", size: int | None = None, seed: int = 0
) -> TaskRows:
    """Rows with `id`, `question` and `answer`.

    `name_or_path` is one of `NAMES` or `MEDICAL` (`arithmetic:1,2` has problems of these levels only), a file (.jsonl,
    .json, .csv, .tsv or .parquet), a folder with files named for their splits, or `owner/name` on the Hugging Face Hub.
    What has no published splits is divided by its questions into train, val and test (8 : 1 : 1); the split "all", for
    everything that is not generated, takes every row. Without a `size`, generated data sets have `DEFAULT_SIZE` rows
    and others all they hold.

    Raises:
        DatasetError: no such data set, split or file, or a malformed one.
        ImportError: the extra that the data set needs is not installed.
    """
    name = str(name_or_path)
    path = Path(name_or_path)
    known, _, levels = name.partition(":")
    if known not in (*NAMES, MEDICAL):
        if not (path.exists() or is_data_file(path) or is_hub_name(name)):
            raise DatasetError(
                f"--dataset {name!r} does not exist{meant(name, NAMES)}; choose {', '.join((*NAMES, MEDICAL))}, "
                f"or give a file ({', '.join(SUFFIXES)}), a folder, or owner/name on the Hugging Face Hub"
            )
        return load_tasks_of(name_or_path, split, size, seed)
    if split == "all":
        raise DatasetError(f'--dataset {name}: the split "all" is for files; choose train, val or test')
    wanted = check_split(split)
    if known == "arithmetic":
        return ArithmeticDataset(wanted, DEFAULT_SIZE if size is None else size, seed, _levels(known, levels))
    if known == MEDICAL:
        return MedicalQuestions(wanted, DEFAULT_SIZE if size is None else size, seed, _levels(known, levels))
    if levels:
        raise DatasetError(f"--dataset {name}: only arithmetic and medical have levels; write {known}")
    if known == "gsm_symbolic":
        return load_gsm_symbolic(wanted, DEFAULT_SIZE if size is None else size, seed)
    return load_gsm8k(wanted, size, seed)


def _levels(name: str, text: str) -> Sequence[int]:
    if not text:
        return LEVELS
    parts = text.split(",")
    if not all(part.strip() in map(str, LEVELS) for part in parts):
        raise DatasetError(f"--dataset {name}:{text}: the levels are {', '.join(map(str, LEVELS))}, as {name}:1,2")
    return [int(part) for part in parts]
