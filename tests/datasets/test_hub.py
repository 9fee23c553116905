"""What comes through the Hub's own loader, from a repository on this disk, and the names that ask for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import datasets
from mini_agentic_rl.datasets.records import is_hub_name, load_hub
from mini_agentic_rl.datasets.rows import DatasetError


def test_the_published_splits_and_rows_of_a_repository_come_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = tmp_path / "repository" / "data"
    data.mkdir(parents=True)
    for split, count in (("train", 3), ("test", 1)):
        rows = [{"question": f"{split} {index}?", "answer": f"#### {index}"} for index in range(count)]
        (data / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    parts = load_hub(str(tmp_path / "repository"))
    assert {split: len(records) for split, records in parts.items()} == {"train": 3, "test": 1}
    where, record = parts["test"][0]
    assert where.endswith("repository, test row 0")
    assert record == {"question": "test 0?", "answer": "#### 0"}


def test_what_cannot_be_had_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"cannot be loaded from the Hub .*give a local copy"):
        load_hub(str(tmp_path))


def test_names_of_the_hub_have_an_owner() -> None:
    names = ("openai/gsm8k", "openai/gsm8k:main", "my_module:rows", "arithmetic", "a/b/c")
    assert [is_hub_name(name) for name in names] == [True, True, False, False, False]
