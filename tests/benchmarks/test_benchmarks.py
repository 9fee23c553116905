"""The benchmarks run on a tiny model and count what they say they count."""

from __future__ import annotations

import csv
import importlib
import json
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from mini_agentic_rl.commands import ServeSettings, open_server
from processes import run_python
from tiny import tiny_tokenizer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script, *options):
    """Return the output of a benchmark as JSON."""
    return json.loads(run_python(BENCHMARKS / script, *map(str, options))[0])


@pytest.fixture
def load(monkeypatch):
    """Return a function that imports a benchmark."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Return a function that runs an imported benchmark in this process, and returns its output as JSON."""

    def run_here(module, *options):
        monkeypatch.setattr(sys, "argv", [module.__name__, *options, "--json"])
        module.main()
        return json.loads(capsys.readouterr().out)

    return run_here


def test_answers_and_their_records_are_measured(tmp_path, load, run_here, monkeypatch):
    shutil.copy(BENCHMARKS / "gateway.py", tmp_path / "gateway_benchmark.py")  # `gateway` is a package of tests
    monkeypatch.syspath_prepend(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    options = ["--model", str(tmp_path), "--clients", "1", "--requests", "2", "--prompt-tokens", "60"]
    options += ["--stores", "sqlite", "--step-ms", "1", "--answers", "whole", "engine"]
    rows = run_here(load("gateway_benchmark"), *options)
    assert [(row["store"], row["answers"]) for row in rows] == [("sqlite", "whole"), ("sqlite", "engine")]
    assert all(row["requests"] == 2 and row["cpu_ms"] > 0 and row["wall_ms"] > 0 for row in rows)


def ended(folder: Path, accuracy: float, low: float) -> None:
    folder.mkdir(parents=True)
    summary = {
        "accuracy": [{"name": "before", "accuracy": 0.0}, {"name": "after RL", "accuracy": accuracy}],
        "verdict": {"gain": accuracy, "low": low, "high": 1.0},
        "seconds": {"this process": 120.0, "sft": 10.0, "sampling": 20.0, "learning": 10.0},
        "peak_memory_bytes": 2**30,
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def test_the_program_of_a_page_is_written_with_a_seed(tmp_path, load):
    learning = load("learning")
    learning.write_program(learning.DOCUMENTED["tutorial"], 7, "float32", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(learning.DOCUMENTED["tutorial"].files)
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
    (agent,) = json.loads(run_python(BENCHMARKS / "learning.py", *options, expect=1)[0])["agents"]
    assert (agent["after"], agent["worst"], agent["reached"], agent["holds"]) == (0.9, 0.1, "2 of 3", False)
    assert agent["lowest bound"] == pytest.approx(0.0)
    assert agent["on rewards"] == pytest.approx(0.75)
    with table.open() as file:
        assert [row["run"] for row in csv.DictReader(file)] == ["float32-0", "float32-1", "float32-2"]


def test_bytes_through_the_store_and_of_adapters_are_counted(tiny_folder, tmp_path, monkeypatch):
    options = ["--model", tiny_folder, "--dtype", "float32", "--device", "cpu", "--writes", "1", "--ranks", "2", "4"]
    options += ["--rollouts", "1", "--calls", "2", "--prompt-tokens", "16", "--new-tokens", "4", "--turn", "Go on."]
    monkeypatch.chdir(tmp_path)
    result = run("scaling.py", "--json", *options)
    store = result["store"]
    assert (store["rollouts"], store["calls"], store["new_tokens"]) == (1, 2, 8)
    assert store["spans"] >= 3, "two calls and a reward"
    parts = [store[f"{party}_{way}"] for party in ("runner", "gateway", "learner") for way in ("sent", "received")]
    assert all(parts)
    assert abs(sum(parts) - store["bytes"]) < 1
    small, large = result["adapters"]
    assert large["weights"] == 2 * small["weights"]
    assert 4 * large["weights"] < large["bytes"] < 4 * large["weights"] + 50_000
    assert list(tmp_path.iterdir()) == []


def test_one_by_one_batches_and_clients_are_measured(tiny_folder, load, run_here):
    options = ["--model", tiny_folder, "--device", "cpu", "--texts", "4", "--answers", "2", "--rounds", "1"]
    options += ["--dtype", "float32"]  # a score of bfloat16 has three digits
    rows = run_here(load("score"), *options, "--clients", "1", "--requests", "2")
    assert [row["texts"] for row in rows] == ["shared prompts", "different prompts"]
    for row in rows:
        assert row["count"] == 4
        assert row["largest_difference"] < 1e-4
        assert all(row[name] > 0 for name in ("one_by_one_per_s", "batch_per_s", "clients_per_s", "p99_ms", "ratio"))


def test_a_step_computes_each_distinct_token_once(tiny_folder):
    sizes = {"--tasks": 2, "--prompt-tokens": 220, "--new-tokens": 5, "--turns": 2, "--tool-tokens": 20, "--warmup": 0}
    options = ["--model", tiny_folder, "--device", "cpu", "--dtype", "float32", "--samples", "4", "--steps", "1"]
    row = run("grpo_step_ours.py", *options, *(text for size in sizes.items() for text in size))
    rollout = 5 + 20 + 5
    # Tasks share the beginning of their prompts, and samples of a task may agree in their first tokens.
    assert 220 + 2 * rollout < row["computed_tokens"] <= 2 * (220 + 4 * rollout)
    assert row["step"] == pytest.approx(row["sampling"] + row["learning"])


def test_sampling_is_measured_over_http(tiny_folder, load, run_here, monkeypatch):
    sampling = load("sampling")

    @contextmanager
    def our_server(options):
        with open_server(ServeSettings(model=options.model, device="cpu", port=0)) as server:
            yield server.endpoint

    monkeypatch.setattr(sampling, "our_server", our_server)
    options = ["--requests", "3", "--system-tokens", "40", "--new-tokens", "6", "--peers"]
    (row,) = run_here(sampling, "--model", tiny_folder, "--device", "cpu", *options)
    assert row["side"] == "mini-agentic-rl, HTTP"
    assert row["complete"]
    assert row["tokens"] == 18


def test_memory_is_measured_beside_the_plan(tiny_folder, load, run_here, monkeypatch):
    memory = load("memory")
    monkeypatch.setattr(memory, "measure", lambda python, script, arguments: run(script, *arguments))
    options = ["--prompt-tokens", "100", "--new-tokens", "4", "--tasks", "1", "--samples", "2", "--chunks", "64"]
    rows = run_here(memory, "--model", tiny_folder, "--device", "cpu", *options)
    assert [row["checkpointing"] for row in rows] == [False, True]
    assert all(row["ratio"] == row["planned"] / row["measured"] for row in rows)


@pytest.mark.parametrize("script", ["exactness.py", "fast_paths.py"])
def test_the_checks_of_a_gpu_hold_on_a_cpu(script, tiny_folder):
    sizes = ["--tasks", "2", "--samples", "2", "--prompt-tokens", "100", "--new-tokens", "4"]
    options = sizes if script == "fast_paths.py" else []
    rows = run(script, "--model", tiny_folder, "--device", "cpu", "--dtype", "float32", *options)
    assert rows
    assert all(row["holds"] for row in rows)


def test_rates_and_ratios_are_measured_and_nothing_but_the_output_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--stores", "memory", "--rollouts", "20", "--rounds", "1", "--callers", "1", "--output", "rates.json"]
    result = run("store.py", "--json", *options)
    (ours,) = [row for row in result["rates"] if row["store"] == "memory"]
    assert ours["callers"] == 1
    assert ours["enqueues"] > 0
    assert ours["cycles"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["rates.json"]
    assert json.loads((tmp_path / "rates.json").read_text()) == result
