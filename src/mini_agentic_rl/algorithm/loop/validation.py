"""Validation during a training: tasks that are never trained on say which weights are kept, and when to stop.

A validation is a greedy measurement before the first step, every few steps, and after the last. The weights that are
kept are those of the best one, of several alike the first: their checkpoint stays until the run has ended. Where so
many validations in a row as `patience` says were no better, the run ends. What is measured on these tasks afterwards is
too good, since they were chosen by; the held-out tasks say what the weights are worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...metrics import counted, percent

Validations = Sequence[Mapping[str, Any]]
"""`step`, `correct` and `count` of each validation, in order."""


def best_of(validations: Validations) -> Mapping[str, Any] | None:
    """Return the first of those with the largest share of right answers; None where there is none."""
    return max(validations, key=lambda one: one["correct"] / max(1, one["count"]), default=None)


def is_due(step: int, total: int, every: int, validations: Validations) -> bool:
    """Return whether the weights after `step` of `total` steps are still to be validated."""
    return (step % every == 0 or step == total) and all(one["step"] != step for one in validations)


def is_stalled(validations: Validations, patience: int | None) -> bool:
    """Return whether so many validations after the best one were no better; None waits for ever."""
    best = best_of(validations)
    if best is None or patience is None:
        return False
    return len(validations) - 1 - [one["step"] for one in validations].index(best["step"]) >= patience


def outcome(best: Mapping[str, Any], validations: Validations, step: int, total: int) -> str:
    """Return which weights are kept, and why the run ended before its last step where it did."""
    early = "" if step == total else f"stopped after step {step} of {total}: validation stalled; "
    share = percent(best["correct"] / max(1, best["count"]))
    kept = "the last weights are kept" if best["step"] == step else f"the weights of step {best['step']} are kept"
    return f"{early}{kept}, the best of {counted(len(validations), 'validation')} ({share} of {best['count']} tasks)"
