"""Data sets by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from mini_agentic_rl.datasets import load_task_dataset


def write_gsm8k(folder: Path) -> None:
    for split, count in (("train", 200), ("test", 20)):
        rows = [{"question": f"{split} {index}?", "answer": f"Because.\n#### {index}"} for index in range(count)]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_gsm_symbolic_is_reproducible_and_no_question_crosses_splits_between_seeds() -> None:
    train = load_task_dataset("gsm_symbolic", "train", 300, seed=0)
    assert list(train) == list(load_task_dataset("gsm_symbolic", "train", 300, seed=0))
    test = {row["question"] for row in load_task_dataset("gsm_symbolic", "test", 100, seed=1)}
    assert not test & {row["question"] for row in train}


def test_no_two_problems_of_gsm_symbolic_draw_their_numbers_by_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    plain = reasoning_gym.create_dataset

    def observed(name: str, seed: int, size: int) -> Any:
        seeds.extend(range(seed, seed + size))
        return plain(name, seed=seed, size=size)

    monkeypatch.setattr(reasoning_gym, "create_dataset", observed)
    assert len(load_task_dataset("gsm_symbolic", "test", 250)) == 250
    assert len(seeds) == len(set(seeds)) > 2000


def test_gsm_symbolic_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ImportError, match=r"mini-agentic-rl\[recipes\]"):
        load_task_dataset("gsm_symbolic", size=1)


def test_a_folder_in_the_manner_of_gsm8k_keeps_the_published_test_set(tmp_path: Path) -> None:
    write_gsm8k(tmp_path)
    train, val, test = (load_task_dataset(tmp_path, split) for split in ("train", "val", "test"))
    assert len(train) + len(val) == 200
    assert 5 <= len(val) <= 40
    assert not {row["id"] for row in train} & {row["id"] for row in val}
    assert [row["answer"] for row in test] == [str(index) for index in range(20)]
