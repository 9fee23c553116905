"""The verdict on a run: whether rewards made the policy better on held-out tasks, with a 95 % interval of the gain.

The measurement before the first step of reinforcement learning and the one after the last are of the same tasks, so the
gain is compared task by task (`paired.compare_shares`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

from ..algorithm import OF_TRANSFER
from ..metrics import Finding, percent
from .evaluations import AnswerRows, by_evaluation, shares
from .paired import PairedDifference, compare_shares

AFTER: Final = "after RL"
"""Name of the measurement after the last step."""

_EMPTY: Final = ("same_answer", "partial_reward")
"""Findings that leave little of a gain: the policy has learned the form of an answer and does not read the task."""

_SPEED: Final = ("slow_tail", "shared_machine")
"""Findings that say why a run is slow, and nothing about what it learns."""

Outcome = Literal["learned", "not shown", "worse"]


class Verdict(TypedDict):
    """The gain from rewards on held-out tasks."""

    first: str
    """Name of the measurement before the first step: "after SFT", or "before" where nothing was imitated."""
    start: float
    """Accuracy before the first step, in [0, 1]."""
    end: float
    """Accuracy after the last step, in [0, 1]."""
    tasks: int
    """Number of held-out tasks."""
    gain: float
    """`end` less `start`, in [-1, 1]."""
    low: float
    """Lower end of the 95 % interval of the gain."""
    high: float
    """Upper end of it."""
    outcome: Outcome
    """`learned` or `worse` where the interval is above or below 0, else `not shown`."""
    line: str
    """The verdict in one line."""
    advice: list[str]
    """Findings of the doctor: things to try where nothing was learned, and what makes a gain an empty one."""


def verdict_of(rows: AnswerRows, findings: Sequence[Finding] = (), *, teaches: str = "rewards") -> Verdict | None:
    """Return the verdict on a run; None of one that was not measured before and after reinforcement learning.

    Args:
        rows: the answers of its measurements, in order.
        findings: those of the doctor.
        teaches: the word for what was learned from.
    """
    measured = {name: own for name, own in by_evaluation(rows).items() if not name.endswith(OF_TRANSFER)}
    before = [name for name, own in measured.items() if own[0].get("step", 0) == 0 and name != AFTER]
    if AFTER not in measured or not before:
        return None
    first, last = shares(measured[before[-1]], "correct"), shares(measured[AFTER], "correct")
    common = [problem for problem in first if problem in last]
    if not common:
        return None
    found = compare_shares([first[problem] for problem in common], [last[problem] for problem in common])
    start, end = (float(sum(of[problem] for problem in common) / len(common)) for of in (first, last))
    outcome: Outcome = "learned" if found.low > 0 else "worse" if found.high < 0 else "not shown"
    return {
        "first": before[-1],
        "start": start,
        "end": end,
        "tasks": len(common),
        "gain": found.difference,
        "low": found.low,
        "high": found.high,
        "outcome": outcome,
        "line": f"{teaches}: {_line(start, end, len(common), found, outcome)}",
        "advice": _advice(
            [one for one in findings if one.rule not in _SPEED and (outcome != "learned" or one.rule in _EMPTY)],
            outcome,
        ),
    }


def verdict_lines(verdict: Mapping[str, Any] | None) -> list[str]:
    """Return a verdict as a person reads it: the line, and what to try where nothing was learned."""
    return [] if not verdict else [verdict["line"], *(f"try: {advice}" for advice in verdict["advice"])]


def _line(start: float, end: float, tasks: int, found: PairedDifference, outcome: Outcome) -> str:
    says = {
        "learned": "it learned",
        "worse": "it got worse",
        "not shown": "the interval holds 0, so no learning is shown",
    }
    return (
        f"{100 * start:.1f} → {percent(end)} of {tasks} held-out tasks ({100 * found.difference:+.1f} points, "
        f"95 % interval {100 * found.low:.0f} to {100 * found.high:.0f}): {says[outcome]}"
    )


def _advice(findings: Sequence[Finding], outcome: Outcome) -> list[str]:
    if findings or outcome == "learned":
        return [f"{finding.head}: {finding.body}" for finding in findings[:3]]
    return [
        "more steps (`total_steps`), more held-out tasks for a narrower interval (`eval_size`), or tasks that the "
        "agent solves now and then: it cannot learn from tasks that it always or never solves"
    ]
