"""The benchmarks of a step, of sampling and of memory run, and say what they should, on a tiny model."""

from __future__ import annotations

import importlib
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
    return json.loads(run_python(BENCHMARKS / script, *arguments)[0].splitlines()[-1])


@pytest.fixture
def benchmark(monkeypatch):
    """Import a benchmark; the scripts that it measures run in forks."""
    monkeypatch.syspath_prepend(BENCHMARKS)

    def load(name):
        module = importlib.import_module(name)
        monkeypatch.setattr(module, "measure", lambda python, script, arguments: _run(script, *arguments))
        return module

    return load


def test_a_side_that_fails_ends_the_benchmark(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from grpo_step import measure

    with pytest.raises(SystemExit, match=r"no_such\.py failed"):
        measure(sys.executable, "no_such.py", [])


def test_a_step_computes_each_distinct_token_once(model):
    sizes = {"--tasks": 2, "--prompt-tokens": 420, "--new-tokens": 5, "--turns": 2, "--tool-tokens": 50, "--warmup": 0}
    arguments = [text for name, value in sizes.items() for text in (name, str(value))]
    options = ["--model", model, "--device", "cpu", "--dtype", "float32", *arguments, "--samples", "4", "--steps", "1"]
    row = _run("grpo_step_ours.py", *options)
    rollout = 5 + 50 + 5
    # Tasks share the beginning of their prompts, and samples of a task may agree in their first tokens.
    assert 420 + 2 * rollout < row["computed_tokens"] <= 2 * (420 + 4 * rollout)
    assert row["step"] == pytest.approx(row["sampling"] + row["learning"])


def test_sampling_is_measured_over_http(model):
    arguments = ["--requests", "3", "--system-tokens", "40", "--new-tokens", "6", "--peers", "--json"]
    output, _ = run_python(BENCHMARKS / "sampling.py", "--model", model, "--device", "cpu", *arguments)
    (row,) = json.loads(output)
    assert row["side"] == "mini-agentic-rl, HTTP"
    assert row["complete"]
    assert row["tokens"] == 18


def test_memory_is_measured_beside_the_plan(model, benchmark, monkeypatch, capsys):
    memory = benchmark("memory")
    arguments = ["--prompt-tokens", "300", "--new-tokens", "4", "--tasks", "1", "--samples", "2", "--chunks", "64"]
    monkeypatch.setattr(sys, "argv", ["memory.py", "--model", model, "--device", "cpu", *arguments, "--json"])
    memory.main()
    rows = json.loads(capsys.readouterr().out)
    assert [row["checkpointing"] for row in rows] == [False, True]
    assert all(row["ratio"] == row["planned"] / row["measured"] for row in rows)


@pytest.mark.parametrize("script", ["exactness.py", "fast_paths.py"])
def test_the_checks_of_a_gpu_hold_on_a_cpu(script, model):
    sizes = ["--tasks", "2", "--samples", "2", "--prompt-tokens", "100", "--new-tokens", "4"]
    options = sizes if script == "fast_paths.py" else []
    rows = _run(script, "--model", model, "--device", "cpu", "--dtype", "float32", *options)
    assert rows
    assert all(row["holds"] for row in rows)
