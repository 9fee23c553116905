"""GSM8K (arXiv:2110.14168): grade-school word problems, from the Hugging Face Hub or a local copy."""

from __future__ import annotations

from pathlib import Path

from .jsonl import as_row, load_jsonl
from .rows import DatasetError, Row, TaskRows, check_split, choose, split_of

HUB_NAME = "openai/gsm8k"


def load_gsm8k(
    split: str = "train", size: int | None = None, seed: int = 0, *, path: str | Path | None = None
) -> TaskRows:
    """Rows of GSM8K: "test" is the published test set, "val" a tenth of the published training set, "train" the rest.

    `path` is a folder with train.jsonl and test.jsonl, or with a copy of the Hub's repository; without it the Hub is
    asked. `size` rows are drawn with `seed`; None takes all.

    Raises:
        DatasetError: an unknown split, a missing or malformed file, or no access to the Hub.
    """
    wanted = check_split(split)
    published = "test" if wanted == "test" else "train"
    rows = _published(published, path)
    if published == "train":
        rows = [row for row in rows if (split_of(row["question"]) == "val") == (wanted == "val")]
    return choose(rows, size, seed)


def _published(split: str, path: str | Path | None) -> list[Row]:
    if path is not None and (Path(path) / f"{split}.jsonl").exists():
        return load_jsonl(Path(path) / f"{split}.jsonl")
    if path is not None and not Path(path).is_dir():
        raise DatasetError(f"--dataset {path}: no such folder")
    from datasets import load_dataset

    source = str(path) if path is not None else HUB_NAME
    try:
        records = load_dataset(source, "main", split=split)
    except Exception as error:  # the Hub client raises whatever its transport does
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(
            f"--dataset gsm8k: cannot load {source} ({reason}); give a folder with train.jsonl and test.jsonl"
        ) from error
    return [as_row(dict(record), f"--dataset {source}, row {index}", f"gsm8k-{split}-{index}")
            for index, record in enumerate(records)]  # fmt: skip
