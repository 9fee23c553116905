"""The examples run as a person runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def _run(name, *options):
    command = [sys.executable, str(EXAMPLES / name), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_an_agent_of_ones_own_is_trained_and_then_measured(tiny_folder, tmp_path):
    run = tmp_path / "run"
    size = ("--steps", "1", "--tasks-per-step", "2", "--eval-size", "2", "--sft-examples", "4")
    told = _run("train_math_agent.py", "--model", tiny_folder, *size, "--seed", "1", "--output-dir", str(run))
    rows = [line.split(":") for line in told.splitlines()[-3:]]
    assert [name.strip() for name, _ in rows] == ["before", "after SFT", "after RL"]
    assert all(found.endswith("of 2") for _, found in rows)
    adapter = run / "adapter"
    before = adapter.joinpath("adapter_model.safetensors").read_bytes()

    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"question": "What is 1 + 1?", "answer": "2"}\n{"question": "What is 2 + 3?", "answer": 5}\n')
    measured = _run(
        "benchmark.py",
        *("--model", tiny_folder, "--adapter", str(adapter), "--dataset", str(tasks), "--size", "2", "--samples", "2"),
    )
    assert "pass@1" in measured
    assert "of 4" in measured
    assert "pass@2" in measured
    assert adapter.joinpath("adapter_model.safetensors").read_bytes() == before
