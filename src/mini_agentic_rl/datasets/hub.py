"""Data sets of the Hugging Face Hub, or local copies of them."""

from __future__ import annotations

import re
from pathlib import Path

from ..hub_access import ask_hub
from .records import Located, is_data_file, located
from .rows import DatasetError
from .splits import SPLIT_NAMES

_FOLDERS = ("", "data", "main", "default")
"""Where the files of a copy may lie in its folder."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(?::[\w.-]+)?")


def is_hub_name(name: str) -> bool:
    """Whether a name has the form of one on the Hub: "owner/name", or "owner/name:configuration"."""
    return bool(_HUB_NAME.fullmatch(name))


def load_hub(name: str) -> dict[str, list[Located]]:
    """The records of each published split.

    Raises:
        DatasetError: it cannot be had: no such data set, no access, or no network.
    """
    from datasets import load_dataset

    source, _, configuration = name.partition(":")
    answers = ask_hub()
    try:
        found = load_dataset(source, configuration or None)
    except Exception as error:  # the Hub client raises whatever its transport does
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if not answers and not Path(source).exists():
            reason = "which does not answer, and it was never fetched before"
        raise DatasetError(
            f"--dataset {name}: cannot be loaded from the Hub ({reason}); give a local copy of it instead"
        ) from error
    return {
        str(split): [(f"--dataset {name}, {split} row {index}", dict(record)) for index, record in enumerate(records)]
        for split, records in found.items()
    }


def load_folder(folder: Path) -> dict[str, list[Located]]:
    """The records of each split of a folder: files named for their split, such as train.jsonl and
    validation-00000-of-00002.parquet, in the folder itself or in its data, main or default.

    Raises:
        DatasetError: it holds no such file, or one that cannot be read.
    """
    known = {alias for names in SPLIT_NAMES.values() for alias in names}
    for place in _FOLDERS:
        inner = folder / place
        if not inner.is_dir():
            continue
        files: dict[str, list[Path]] = {}
        for path in sorted(inner.iterdir()):
            split = re.split(r"[-.]", path.name, maxsplit=1)[0]
            if path.is_file() and is_data_file(path) and split.split("_")[0] in known:
                files.setdefault(split, []).append(path)
        if files:
            return {split: [item for path in paths for item in located(path)] for split, paths in files.items()}
    raise DatasetError(f"--dataset {folder}: holds no train.jsonl, nor another file named for a split")
