"""The benchmark of what a spread training sends counts what it says it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from processes import run_python

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "scaling.py"


def test_bytes_through_the_store_and_of_adapters_are_counted(
    tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--model", tiny_folder, "--dtype", "float32", "--device", "cpu", "--writes", "1", "--ranks", "2", "4"]
    options += ["--rollouts", "3", "--calls", "2", "--prompt-tokens", "16", "--new-tokens", "4", "--turn", "Go on."]
    monkeypatch.chdir(tmp_path)
    result = json.loads(run_python(BENCHMARK, "--json", *options)[0])
    store = result["store"]
    assert (store["rollouts"], store["calls"], store["new_tokens"]) == (3, 2, 8)
    assert store["spans"] >= 3, "two calls and a reward"
    parts = [store[f"{party}_{way}"] for party in ("runner", "gateway", "learner") for way in ("sent", "received")]
    assert all(parts)
    assert abs(sum(parts) - store["bytes"]) < 1
    small, large = result["adapters"]
    assert large["weights"] == 2 * small["weights"]
    assert 4 * large["weights"] < large["bytes"] < 4 * large["weights"] + 50_000
    assert list(tmp_path.iterdir()) == []
