"""The benchmark of the stores measures what it says it measures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "store.py"


def _run(folder: Path, *options: str):
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--json", *options], capture_output=True, text=True, cwd=folder, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_rates_and_ratios_are_measured_and_nothing_but_the_output_is_written(tmp_path: Path) -> None:
    options = ["--stores", "memory", "--rollouts", "40", "--rounds", "1", "--callers", "1", "--output", "rates.json"]
    result = _run(tmp_path, *options)
    (ours,) = [row for row in result["rates"] if row["store"] == "memory"]
    assert ours["callers"] == 1
    assert ours["enqueues"] > 0
    assert ours["cycles"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["rates.json"]
    assert json.loads((tmp_path / "rates.json").read_text()) == result


def test_claims_are_counted(tmp_path: Path) -> None:
    (row,) = _run(tmp_path, "--stores", "sqlite", "--claims", "30", "--processes", "2")["claims"]
    assert (row["claimed"], row["claimed twice"], row["processes"]) == (30, 0, 2)
