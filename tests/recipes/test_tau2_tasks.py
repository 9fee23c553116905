"""The tau2 loader on data made up here; `tests/agents_tau2` reads the data of the package."""

from __future__ import annotations

import json

import pytest

from mini_agentic_rl.datasets import DatasetError
from mini_agentic_rl.recipes.tau2.tasks import DATA_DIR_VARIABLE, load_tau2

TASKS = [{"id": str(number), "user_scenario": {"instructions": f"Ask for {number}."}} for number in range(10)]
SPLITS = {"train": ["0", "1", "2"], "test": ["3", "4"], "base": [str(number) for number in range(6)]}


@pytest.fixture
def data_dir(tmp_path):
    for domain, splits in (("airline", SPLITS), ("retail", None)):
        folder = tmp_path / "tau2" / "domains" / domain
        folder.mkdir(parents=True)
        folder.joinpath("tasks.json").write_text(json.dumps(TASKS))
        if splits is not None:
            folder.joinpath("split_tasks.json").write_text(json.dumps(splits))
    return tmp_path


def test_the_splits_are_those_of_the_suite_or_halves(data_dir):
    splits = {split: [row["id"] for row in load_tau2("airline", split, data_dir=data_dir)] for split in SPLITS}
    assert splits == SPLITS
    (row,) = load_tau2("airline", "test", 1, seed=3, data_dir=data_dir)
    assert row["domain"] == "airline"
    assert json.loads(row["data"]) == TASKS[int(row["id"])]
    halves = [[row["id"] for row in load_tau2("retail", split, data_dir=data_dir)] for split in ("train", "test")]
    assert [len(half) for half in halves] == [5, 5]
    assert sorted(halves[0] + halves[1]) == [task["id"] for task in TASKS]
    path = data_dir / "tau2" / "domains" / "retail" / "tasks.json"
    path.write_text(json.dumps(TASKS[::-1]))
    assert sorted(row["id"] for row in load_tau2("retail", "train", data_dir=data_dir)) == sorted(halves[0])


def test_the_environment_may_name_the_data(data_dir, monkeypatch):
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(data_dir))
    assert len(load_tau2("airline")) == 3
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(data_dir / "tau2"))
    with pytest.raises(DatasetError, match=r"TAU2_DATA_DIR=.*holds no folder"):
        load_tau2("airline")


def test_what_cannot_be_had_is_named(data_dir):
    with pytest.raises(DatasetError, match="domain: 'bank' does not exist; choose airline"):
        load_tau2("bank", data_dir=data_dir)
    with pytest.raises(DatasetError, match="no split 'small'; choose base, test, train"):
        load_tau2("airline", "small", data_dir=data_dir)
    with pytest.raises(DatasetError, match=r"telecom.tasks\.json: cannot be read"):
        load_tau2("telecom", data_dir=data_dir)
    folder = data_dir / "tau2" / "domains" / "airline"
    folder.joinpath("split_tasks.json").write_text('{"train": ["0", "99"], "test": []}')
    with pytest.raises(DatasetError, match="lacks task '99'"):
        load_tau2("airline", data_dir=data_dir)
    folder.joinpath("tasks.json").write_text("[")
    with pytest.raises(DatasetError, match="not valid JSON"):
        load_tau2("airline", data_dir=data_dir)
