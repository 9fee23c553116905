"""The benchmark of the reward service runs, and finds the same scores both ways."""

from __future__ import annotations

import json
from pathlib import Path

from processes import run_python

IN_FORKS = Path(__file__).with_name("in_forks.py")


def test_one_by_one_batches_and_clients_are_measured(tiny_folder):
    arguments = ["--model", tiny_folder, "--device", "cpu", "--texts", "8", "--answers", "4", "--rounds", "1"]
    arguments += ["--dtype", "float32"]  # a score of bfloat16 has three digits
    arguments += ["--clients", "2", "--requests", "2", "--json"]
    rows = json.loads(run_python(IN_FORKS, "score.py", *arguments)[0])
    assert [row["texts"] for row in rows] == ["shared prompts", "different prompts"]
    for row in rows:
        assert row["count"] == 8
        assert row["largest_difference"] < 1e-4
        assert all(row[name] > 0 for name in ("one_by_one_per_s", "batch_per_s", "clients_per_s", "p99_ms", "ratio"))
