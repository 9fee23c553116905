"""The results that a training leaves to read: its summary, some conversations, and the versions of what computed."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from ..adapter import TraceToMessages
from ..algorithm import Evaluation, ReinforcementLearning, peak_memory_bytes
from ..trainer import accuracy_row

_PACKAGES = ("mini-agentic-rl", "torch", "transformers", "peft", "numpy")


def training_summary(algorithm: ReinforcementLearning[Any], *, seconds: float, seed: int) -> dict[str, Any]:
    """Return what a training by reinforcement came to.

    Args:
        seconds: that this process took.
        seed: of the run.
    """
    found = algorithm.summary
    return {
        "accuracy": [accuracy_row(row["name"], row["correct"], row["count"]) for row in found["accuracy"]],
        "seconds": {**found["seconds"], "this process": seconds},
        "steps": found["steps"],
        "untrained": found["untrained"],
        "peak_memory_bytes": peak_memory_bytes(),
        "versions": versions(),
        "seed": seed,
    }


def transcripts(evaluation: Evaluation | None, count: int) -> list[dict[str, Any]]:
    """Return some conversations of a measurement for the report, half of them wrong where there are so many."""
    if evaluation is None:
        return []
    found = []
    for finished in evaluation.rollouts:
        rows = TraceToMessages().adapt(finished.spans)
        if not rows:
            continue
        task = finished.rollout.input
        gold = task.get("answer") if isinstance(task, Mapping) else None
        found.append(
            {
                "title": f"{evaluation.name}: {finished.rollout.rollout_id}",
                "messages": rows[-1]["messages"],
                "reward": finished.reward,
                "note": None if gold is None else f"expected answer: {gold}",
            }
        )
    wrong = [row for row in found if not row["reward"]]
    right = [row for row in found if row["reward"]]
    half = count // 2
    return right[: count - min(half, len(wrong))] + wrong[:half]


def versions() -> dict[str, str]:
    """Return the versions of what computes."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
