"""The benchmark of the stores measures what it says it measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from processes import run_python

IN_FORKS = Path(__file__).with_name("in_forks.py")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _run(*options: str):
    return json.loads(run_python(IN_FORKS, "store.py", "--json", *options)[0])


def test_rates_and_ratios_are_measured_and_nothing_but_the_output_is_written(tmp_path: Path) -> None:
    options = ["--stores", "memory", "--rollouts", "40", "--rounds", "1", "--callers", "1", "--output", "rates.json"]
    result = _run(*options)
    (ours,) = [row for row in result["rates"] if row["store"] == "memory"]
    assert ours["callers"] == 1
    assert ours["enqueues"] > 0
    assert ours["cycles"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["rates.json"]
    assert json.loads((tmp_path / "rates.json").read_text()) == result


def test_claims_are_counted() -> None:
    (row,) = _run("--stores", "sqlite", "--claims", "30", "--processes", "2")["claims"]
    assert (row["claimed"], row["claimed twice"], row["processes"]) == (30, 0, 2)
