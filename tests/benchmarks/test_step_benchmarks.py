"""The benchmarks of a step, of sampling and of memory run, and say what they should, on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tiny import tiny_model, tiny_tokenizer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder)
    tiny_model(vocabulary=len(tokenizer)).save_pretrained(folder)
    return str(folder)


def _run(script, *arguments):
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments, "--json"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("turns", [1, 2])
def test_a_step_computes_each_distinct_token_once(model, turns):
    sizes = {"--tasks": 2, "--samples": 3, "--prompt-tokens": 420, "--new-tokens": 5, "--tool-tokens": 50}
    arguments = [text for name, value in sizes.items() for text in (name, str(value))]
    result = _run(
        "grpo_step.py",
        "--model",
        model,
        "--device",
        "cpu",
        "--turns",
        str(turns),
        "--warmup",
        "0",
        "--peer-python=",
        *arguments,
    )
    (row,) = result["rows"]
    rollout = turns * 5 + (turns - 1) * 50
    # Samples of a task may agree in their first tokens, and then hold them in common.
    assert 2 * (420 + rollout) < row["computed_tokens"] <= 2 * (420 + 3 * rollout)
    assert row["step"] == pytest.approx(row["sampling"] + row["learning"])
    assert result["ratios"] == {}


def test_the_growth_with_the_group_is_reported(model):
    arguments = ["--prompt-tokens", "300", "--new-tokens", "4", "--tasks", "1", "--warmup", "0", "--peer-python="]
    result = _run("grpo_step.py", "--model", model, "--device", "cpu", "--samples", "2", "4", *arguments)
    assert [row["samples"] for row in result["rows"]] == [2, 4]
    assert list(result["ratios"]) == ["step of mini-agentic-rl: 4 samples / 2 samples"]


def test_sampling_is_measured_over_http_against_padded_generation(model):
    arguments = ["--requests", "3", "--system-tokens", "40", "--new-tokens", "6"]
    rows = _run("sampling.py", "--model", model, "--device", "cpu", *arguments)
    assert [row["side"] for row in rows] == ["mini-agentic-rl, HTTP", "transformers, padded"]
    assert all(row["complete"] and row["tokens"] == 18 for row in rows)


def test_memory_is_measured_beside_the_plan(model):
    arguments = ["--prompt-tokens", "300", "--new-tokens", "4", "--tasks", "1", "--samples", "2", "--chunks", "64"]
    rows = _run("memory.py", "--model", model, "--device", "cpu", *arguments)
    assert [row["checkpointing"] for row in rows] == [False, True]
    assert all(row["ratio"] == row["planned"] / row["measured"] for row in rows)
