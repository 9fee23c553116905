"""Tasks from files, folders and the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .hub import is_hub_name, load_folder, load_hub
from .jsonl import as_row
from .records import Located, is_data_file, located, stem
from .rows import DatasetError, Row, TaskRows, choose
from .splits import select


def load_tasks_of(source: str | Path, split: str, size: int | None, seed: int) -> TaskRows:
    """Rows with `id`, `question` and `answer` of one split, or of all.

    Raises:
        DatasetError: there is no such file, folder or data set, or a record is no task.
    """
    return choose(select(task_rows(load_parts(source), stem(Path(source))), split, _question), size, seed)


def load_parts(source: str | Path) -> dict[str, list[Located]]:
    """The records of a file, of a folder's files or of a data set on the Hub, by split.

    Raises:
        DatasetError: there is no such thing, or it cannot be read.
    """
    path, name = Path(source), str(source)
    if path.is_dir():
        return load_folder(path)
    if path.is_file() or is_data_file(path):
        return {"all": located(path)}
    if is_hub_name(name):
        return load_hub(name)
    raise DatasetError(f"--dataset {name}: no such file or folder")


def task_rows(parts: Mapping[str, Sequence[Located]], name: str) -> dict[str, list[Row]]:
    """Each record as a task; one without `id` is called after `name`, or after its split, and its place.

    Raises:
        DatasetError: a record is no task.
    """
    return {
        part: [as_row(record, where, f"{name if part == 'all' else part}-{number}")
               for number, (where, record) in enumerate(records, 1)]
        for part, records in parts.items()
    }  # fmt: skip


def _question(row: Row) -> str:
    return str(row["question"])
