"""A task data set by its name or path, as the commands take it: of a recipe, of a plugin, downloaded, or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..plugins import load_plugin, or_plugin, plugin_has
from .families import family_type, find_family, task_names
from .records import SUFFIXES, is_data_file, is_hub_name
from .rows import SPLITS, DatasetError, Row, TaskRows, meant
from .tasks import as_row, load_tasks_of

TEXT = "text"
"""The style of a row without tools, and the word before the name of a data set that asks for it: "text:gsm8k"."""


def split_style(name: str) -> tuple[str, bool]:
    """Return the name of a data set without "text:" before it, and whether that was there."""
    prefix, colon, rest = name.partition(":")
    return (rest, True) if prefix == TEXT and colon and rest else (name, False)


def in_text(rows: Sequence[Row]) -> TaskRows:
    """Return the rows in the style without tools."""
    return TaskRows([{**row, "style": TEXT} for row in rows])


def splits_of(name_or_path: str | Path) -> tuple[str, ...]:
    """Return the splits of a task data set, those to train on first."""
    family = family_type(split_style(str(name_or_path))[0])
    return SPLITS if family is None else family.splits


def load_task_dataset(
    name_or_path: str | Path, split: str = "train", size: int | None = None, seed: int = 0
) -> TaskRows:
    """Return rows with `id`, `question` and `answer`.

    `name_or_path` is the name of a task family (`arithmetic:1,2` has problems of these levels only), the name of a
    plugin, a file (.jsonl, .json, .csv, .tsv or .parquet), a folder with files named for their splits, or `owner/name`
    on the Hugging Face Hub. What has no published splits is divided by its questions into train, val and test
    (8 : 1 : 1); the split "all", for everything that is not generated, takes every row. "text:" before the name asks
    for answers in words: the rows have the `style` "text", by which the math agent offers no calculator. Without a
    `size`, generated data sets have 1,000 rows and others all they hold.

    Raises:
        DatasetError: no such data set, split or file, or a malformed one.
        MissingPackageError: the extra that the data set needs is not installed.
    """
    name, as_text = split_style(str(name_or_path))
    family = find_family(name)
    if family is not None:
        rows = family.tasks(split, size, seed)
    elif is_plugged(name):
        rows = _plugged(name, split, size, seed)
    else:
        check_exists(name)
        rows = load_tasks_of(name, split, size, seed)
    return in_text(rows) if as_text else rows


def exists(name: str) -> bool:
    """Return True for a file, a folder or a name on the Hub."""
    path = Path(name)
    return path.exists() or is_data_file(path) or is_hub_name(name)


def check_exists(name: str) -> None:
    """Do nothing for a file, a folder or a name on the Hub.

    Raises:
        DatasetError: `name` is none of these.
    """
    if not exists(name):
        names = task_names()
        raise DatasetError(
            f"{name!r} does not exist{meant(name, names)}; choose {', '.join(names)}, or give a file "
            f"({', '.join(SUFFIXES)}), a folder, owner/name on the Hugging Face Hub, or for examples module:function"
            f"{or_plugin('datasets')}",
            setting="dataset",
        )


def is_plugged(name: str) -> bool:
    """Return True for a name that is no file here and that a plugin offers, with or without what follows a colon."""
    return not Path(name).exists() and plugin_has("datasets", name.partition(":")[0])


def _plugged(name: str, split: str, size: int | None, seed: int) -> TaskRows:
    """Return the rows of a plugin, which is called with split, size and seed, and with the text after a colon as
    `name` where there is one."""
    known, _, rest = name.partition(":")
    load = load_plugin("datasets", known, setting="dataset")
    more = {"name": rest} if rest else {}
    try:
        rows = [] if load is None else list(load(split=split, size=size, seed=seed, **more))
        return TaskRows(
            [as_row(dict(row), f"{name}: row {at}", f"{known}-{split}-{at}") for at, row in enumerate(rows)]
        )
    except UserError:
        raise
    except Exception as error:  # the plugin's code may fail in any way
        raise DatasetError(f"{name!r} gives no rows: {type(error).__name__}: {error}", setting="dataset") from error
