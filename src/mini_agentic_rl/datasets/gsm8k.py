"""GSM8K (arXiv:2110.14168): grade-school word problems, from the Hugging Face Hub or a local copy."""

from __future__ import annotations

from pathlib import Path

from .rows import DatasetError, TaskRows, check_split
from .tasks import load_tasks_of

HUB_NAME = "openai/gsm8k:main"
LOCAL = "./gsm8k"
"""Where a copy is looked for, in the working directory."""


def load_gsm8k(
    split: str = "train", size: int | None = None, seed: int = 0, *, path: str | Path | None = None
) -> TaskRows:
    """Rows of GSM8K: "test" is the published test set, "val" a tenth of the published training set, "train" the rest.

    `path` is a folder with train.jsonl and test.jsonl, or a clone of the Hub's repository; without it that is `LOCAL`,
    if there is such a folder, and else the Hub is asked.
    `size` rows are drawn with `seed`; None takes all. A row's `solution` is the worked one.

    Raises:
        DatasetError: an unknown split, a missing or malformed file, or no access to the Hub.
    """
    wanted = check_split(split)
    if path is not None or Path(LOCAL).is_dir():
        return load_tasks_of(path or LOCAL, wanted, size, seed)
    try:
        return load_tasks_of(HUB_NAME, wanted, size, seed)
    except DatasetError as error:
        raise DatasetError(f"{error}, as the folder {LOCAL} or by its path") from error
