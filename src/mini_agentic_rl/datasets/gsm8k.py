"""GSM8K (arXiv:2110.14168): grade-school word problems, from the Hugging Face Hub or a local copy."""

from __future__ import annotations

from pathlib import Path

from .rows import TaskRows, check_split
from .tasks import load_tasks_of

HUB_NAME = "openai/gsm8k:main"


def load_gsm8k(
    split: str = "train", size: int | None = None, seed: int = 0, *, path: str | Path | None = None
) -> TaskRows:
    """Rows of GSM8K: "test" is the published test set, "val" a tenth of the published training set, "train" the rest.

    `path` is a folder with train.jsonl and test.jsonl, or a clone of the Hub's repository; without it the Hub is asked.
    `size` rows are drawn with `seed`; None takes all. A row's `solution` is the worked one.

    Raises:
        DatasetError: an unknown split, a missing or malformed file, or no access to the Hub.
    """
    return load_tasks_of(HUB_NAME if path is None else path, check_split(split), size, seed)
