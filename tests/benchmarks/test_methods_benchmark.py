"""The comparison of algorithms trains each of them with each seed, once, and goes on where it was stopped."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_run_that_is_finished_is_read_and_not_made_again(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    methods = importlib.import_module("methods")
    monkeypatch.setattr(methods, "HELD_OUT", {"things": ["trip"], "positive": ["good"], "negative": ["bad"]})
    arguments = ["--model", tiny_folder, "--device", "cpu", "--steps", "1", "--presets", "grpo", "maxrl", "--json"]
    arguments += ["--folder", str(tmp_path), "--seeds"]
    methods.main([*arguments, "3"])
    found = json.loads(capsys.readouterr().out)
    assert {name: [set(run) for run in runs] for name, runs in found.items()} == {
        "grpo": [{"accuracy", "reward"}],
        "maxrl": [{"accuracy", "reward"}],
    }
    monkeypatch.setattr(methods, "train", None)
    methods.main([*arguments, "3"])
    assert json.loads(capsys.readouterr().out) == found
