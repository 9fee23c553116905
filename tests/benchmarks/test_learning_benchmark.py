"""The benchmark of learning: programs of pages get a seed, and an agent that fails too often is a failure."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def ended(folder: Path, accuracy: float, low: float) -> None:
    folder.mkdir(parents=True)
    summary = {
        "accuracy": [{"name": "before", "accuracy": 0.0}, {"name": "after RL", "accuracy": accuracy}],
        "verdict": {"gain": accuracy, "low": low, "high": 1.0},
        "seconds": {"this process": 120.0, "sft": 10.0, "sampling": 20.0, "learning": 10.0},
        "peak_memory_bytes": 2**30,
    }
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.mark.parametrize("name", ["judge", "tutorial"])
def test_the_program_of_a_page_is_written_with_a_seed(tmp_path, monkeypatch, name):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from learning import DOCUMENTED, write_program

    write_program(DOCUMENTED[name], 7, "float32", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(DOCUMENTED[name].files)
    for path in tmp_path.iterdir():
        compile(path.read_text(), path.name, "exec")
    program = (tmp_path / "train.py").read_text()
    assert 'MiniGRPO("embedded", seed=7, load_options={"dtype": "float32"}, ' in program
    assert 'output_dir="run", overwrite=True' in program


def test_an_agent_that_learns_in_two_runs_of_three_does_not_hold(tmp_path):
    for number, accuracy in enumerate((1.0, 0.9, 0.1)):
        ended(tmp_path / "runs" / "judge" / f"float32-{number}" / "run", accuracy, accuracy - 0.1)
    table = tmp_path / "table.csv"
    options = ["--seeds", "0", "--folder", str(tmp_path / "runs"), "--csv", str(table), "--json"]
    done = subprocess.run([sys.executable, BENCHMARKS / "learning.py", *options], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    (agent,) = json.loads(done.stdout)["agents"]
    assert (agent["after"], agent["worst"], agent["reached"], agent["holds"]) == (0.9, 0.1, "2 of 3", False)
    assert agent["lowest bound"] == pytest.approx(0.0)
    assert agent["on rewards"] == pytest.approx(0.75)
    with table.open() as file:
        assert [row["run"] for row in csv.DictReader(file)] == ["float32-0", "float32-1", "float32-2"]
