"""One whole training by the command, and what it has to have done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recipes.playing import run


def trained(env: str, model: str, folder: Path, *more: Any) -> dict[str, Any]:
    """Train two steps in an environment, measured before and after, and return the summary."""
    told = run(
        *("train", "--env", env, "--model", model, "--output-dir", folder, "--json"),
        *("--total-steps", "2", "--tasks-per-step", "2", "--samples-per-prompt", "4", "--eval-size", "2"),
        *("--max-samples", "4", "--max-new-tokens", "8", "--cache-mib", "64", *more),
    )
    summary: dict[str, Any] = json.loads(told)
    assert [row["name"] for row in summary["accuracy"]] == ["before", "after RL"]
    assert summary["steps"] == 2
    return summary


def steps_of(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of the steps that learnt."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "loss" in row]
