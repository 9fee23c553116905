"""The benchmarks of a step, of sampling and of memory run, and say what they should, on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from processes import run_python
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
    return json.loads(run_python(BENCHMARKS / script, *arguments, "--device", "cpu", "--json", timeout=240)[0])


def _run_in_forks(script, *arguments):
    return _run(Path(__file__).with_name("in_forks.py"), script, *arguments)


def test_a_side_that_fails_ends_the_benchmark(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from grpo_step import measure

    with pytest.raises(SystemExit, match=r"no_such\.py failed"):
        measure(sys.executable, "no_such.py", [])


def test_a_step_computes_each_distinct_token_once_and_the_growth_with_the_group_is_reported(model):
    sizes = {"--tasks": 2, "--prompt-tokens": 420, "--new-tokens": 5, "--turns": 2, "--tool-tokens": 50, "--warmup": 0}
    arguments = [text for name, value in sizes.items() for text in (name, str(value))]
    result = _run_in_forks("grpo_step.py", "--model", model, *arguments, "--samples", "2", "4", "--peer-python=")
    assert [row["samples"] for row in result["rows"]] == [2, 4]
    rollout = 5 + 50 + 5
    for row in result["rows"]:
        # Tasks share the beginning of their prompts, and samples of a task may agree in their first tokens.
        assert 420 + 2 * rollout < row["computed_tokens"] <= 2 * (420 + row["samples"] * rollout)
        assert row["step"] == pytest.approx(row["sampling"] + row["learning"])
    assert list(result["ratios"]) == ["step of mini-agentic-rl: 4 samples / 2 samples"]


def test_sampling_is_measured_over_http_against_padded_generation(model):
    arguments = ["--requests", "3", "--system-tokens", "40", "--new-tokens", "6"]
    rows = _run_in_forks("sampling.py", "--model", model, *arguments)
    assert [row["side"] for row in rows] == ["mini-agentic-rl, HTTP", "transformers, padded"]
    assert all(row["complete"] and row["tokens"] == 18 for row in rows)


def test_memory_is_measured_beside_the_plan(model):
    arguments = ["--prompt-tokens", "300", "--new-tokens", "4", "--tasks", "1", "--samples", "2", "--chunks", "64"]
    rows = _run_in_forks("memory.py", "--model", model, *arguments)
    assert [row["checkpointing"] for row in rows] == [False, True]
    assert all(row["ratio"] == row["planned"] / row["measured"] for row in rows)


def test_the_gpu_benchmark_runs_to_its_end_on_a_cpu():
    parts = ["exactness, toy, float32", "graphs and FlexAttention, toy, float32", "4 GB"]
    exact, graphs, small_card = _run_in_forks("gpu.py", "--only", *parts)["parts"]
    for part, checks in ((exact, 7), (graphs, 9)):
        assert part["failed"] is None
        assert len(part["rows"]) == checks
        assert all(row["holds"] for row in part["rows"])
    (row,) = small_card["rows"]
    assert row["computed_tokens"] > 0
    assert row["peak_bytes"] < 4e9
