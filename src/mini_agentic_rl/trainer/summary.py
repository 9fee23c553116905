"""The results of a run: its summary, the verdict on it, some conversations, and package versions."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from ..adapter import TraceToMessages
from ..algorithm import OF_TRANSFER, Algorithm, answer_rows
from ..metrics import Finding, RunView, diagnose, percent, read_metrics
from ..processes import peak_memory_bytes
from ..visible_text import visible_argument
from .evaluations import AnswerRows, by_evaluation, check_rows, compare_answers, read_answers
from .report import write_report
from .run_folder import RunFolder
from .statistics import accuracy_row

if TYPE_CHECKING:
    from ..algorithm import Evaluation

AFTER: Final = "after RL"
"""Name of the measurement after the last step."""

_EMPTY: Final = ("same_answer", "partial_reward")
"""Findings that leave little of a gain: the policy has learned the form of an answer and does not read the task."""

_SPEED: Final = ("slow_tail", "shared_machine")
"""Findings about the speed of a run, not about its learning."""

Outcome = Literal["learned", "not shown", "worse"]

_CONCLUSIONS: Final[Mapping[Outcome, str]] = {
    "learned": "it learned",
    "worse": "it got worse",
    "not shown": "the interval holds 0, so no learning is shown",
}
_MORE: Final = (
    "more steps (`total_steps`), more held-out tasks for a narrower interval (`eval_size`), or tasks that the agent "
    "solves now and then: it cannot learn from tasks that it always or never solves"
)


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
    """Findings of the doctor: things to try if nothing was learned, and reasons to doubt a gain."""


def verdict_of(rows: AnswerRows, findings: Sequence[Finding] = (), *, teaches: str = "rewards") -> Verdict | None:
    """Return the verdict on a run; None of one that was not measured before and after reinforcement learning.

    Args:
        rows: the answers of its measurements, in order.
        findings: those of the doctor.
        teaches: source of learning, as the first word of the line.
    """
    measured = {name: answers for name, answers in by_evaluation(rows).items() if not name.endswith(OF_TRANSFER)}
    before = [name for name, answers in measured.items() if answers[0].get("step", 0) == 0 and name != AFTER]
    if AFTER not in measured or not before:
        return None
    comparison = compare_answers(measured[before[-1]], measured[AFTER], "correct")
    if comparison is None:
        return None
    (start, end), tasks = comparison["accuracy"], comparison["problems"]
    gain, low, high = comparison["difference"], comparison["low"], comparison["high"]
    outcome: Outcome = "learned" if low > 0 else "worse" if high < 0 else "not shown"
    shown = [f for f in findings if f.rule not in _SPEED and (outcome != "learned" or f.rule in _EMPTY)]
    advice = [f"{finding.head}: {finding.body}" for finding in shown[:3]]
    return {
        "first": before[-1],
        "start": start,
        "end": end,
        "tasks": tasks,
        "gain": gain,
        "low": low,
        "high": high,
        "outcome": outcome,
        "line": (
            f"{teaches}: {100 * start:.1f} → {percent(end)} of {tasks} held-out tasks ({100 * gain:+.1f} points, "
            f"95 % interval {100 * low:.0f} to {100 * high:.0f}): {_CONCLUSIONS[outcome]}"
        ),
        "advice": advice or ([] if outcome == "learned" else [_MORE]),
    }


def verdict_lines(verdict: Mapping[str, Any] | None) -> list[str]:
    """Return the lines of a verdict: the verdict itself, and things to try if nothing was learned."""
    return [] if not verdict else [verdict["line"], *(f"try: {advice}" for advice in verdict["advice"])]


_PACKAGES = ("mini-agentic-rl", "torch", "transformers", "peft", "numpy")
_TRANSCRIPTS = 6


def what_next(folder: RunFolder) -> list[str]:
    """Return the last lines of a run: the verdict, its folder, and the commands that use its adapter, or its model
    where all weights were trained."""
    lines = verdict_lines(folder.read_summary().get("verdict"))
    lines.append(f"the run is in {folder.path}: {folder.report_path.name} has its curves and transcripts")
    if folder.adapter_path.is_dir():
        option = "--model" if (folder.adapter_path / "config.json").is_file() else "--adapter"
        trained = f"{option} {visible_argument(folder.adapter_path)}"
        lines.append(f"to use what was trained: mini-agentic-rl chat {trained}")
        lines.append(f"or behind a URL:         mini-agentic-rl serve {trained}")
    return lines


def write_results(
    folder: RunFolder, algorithm: Algorithm, *, seconds: float, about: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write the report of a run that has ended, and return its summary, which is still to be written.

    Args:
        seconds: that this process took.
        about: further entries of the summary.

    Raises:
        UserError: the report cannot be written.
    """
    kept = set(by_evaluation(read_answers(folder.evaluations_path)))
    for evaluation in algorithm.evaluations:  # those whose answers the algorithm has not kept itself
        if evaluation.name not in kept:
            folder.save_answers(answer_rows(evaluation), kept)
            kept.add(evaluation.name)
    answers, metrics = read_answers(folder.evaluations_path), read_metrics(folder.metrics_path)
    settings = getattr(algorithm, "settings", None)
    seed, checks = getattr(settings, "seed", None), check_rows(answers)
    summary: dict[str, Any] = json.loads(json.dumps(dict(algorithm.summary), default=str))
    rows, spent = summary.get("accuracy"), summary.get("seconds")
    if isinstance(rows, list):
        summary["accuracy"] = [accuracy_row(row["name"], row["correct"], row["count"]) for row in rows]
    summary["seconds"] = {**(spent if isinstance(spent, dict) else {}), "this process": seconds}
    summary |= {"peak_memory_bytes": peak_memory_bytes(), "versions": versions()}
    summary |= {**({} if seed is None else {"seed": seed}), **({"checks": checks} if checks else {}), **(about or {})}
    view = RunView.of_rows(metrics, eval_size=getattr(settings, "eval_size", None))
    verdict = verdict_of(
        answers, diagnose(view), teaches="rewards" if getattr(settings, "reward_coef", 1) else "training"
    )
    if verdict is not None:
        summary["verdict"] = verdict
    with folder.writing(folder.report_path):
        write_report(
            folder,
            summary=summary,
            metrics_rows=metrics,
            transcripts=transcripts(algorithm.evaluations[-1] if algorithm.evaluations else None, _TRANSCRIPTS),
        )
    return summary


def report_again(
    folder: RunFolder, measured: Sequence[Mapping[str, Any]], conversations: Sequence[Mapping[str, Any]], path: Path
) -> Path:
    """Write the report of a run from its folder, whether or not it has ended, and return its path.

    Args:
        measured: its accuracies so far: `name`, `accuracy` and `count`.
        conversations: the transcripts of the report.

    Raises:
        OSError: the file cannot be written.
        UserError: a file of the run is damaged.
    """
    summary = folder.read_summary()
    if not summary:
        rows = [accuracy_row(row["name"], round(row["accuracy"] * row["count"]), row["count"]) for row in measured]
        summary = {"accuracy": rows, "checks": check_rows(read_answers(folder.evaluations_path))}
    metrics = read_metrics(folder.metrics_path)
    return write_report(folder, summary=summary, metrics_rows=metrics, transcripts=conversations, path=path)


def transcripts(evaluation: Evaluation | None, count: int) -> list[dict[str, Any]]:
    """Return some conversations of a measurement for the report, half of them wrong where there are so many."""
    if evaluation is None:
        return []
    conversations = []
    for finished in evaluation.rollouts:
        rows = TraceToMessages().adapt(finished.spans)
        if not rows:
            continue
        task = finished.rollout.input
        gold = task.get("answer") if isinstance(task, Mapping) else None
        conversations.append(
            {
                "title": f"{evaluation.name}: {finished.rollout.rollout_id}"
                + ("" if finished.unscored is None else f", {finished.unscored}"),
                "messages": rows[-1]["messages"],
                "reward": finished.reward,
                "note": None if gold is None else f"expected answer: {gold}",
            }
        )
    wrong = [row for row in conversations if not row["reward"]]
    right = [row for row in conversations if row["reward"]]
    half = count // 2
    return right[: count - min(half, len(wrong))] + wrong[:half]


def transcript_rows(evaluation: Evaluation | None, count: int) -> list[dict[str, Any]]:
    """Return the conversations of `transcripts` as rows of a table, each in one text."""
    return [
        {
            "rollout": row["title"],
            "reward": row["reward"],
            "expected": row["note"],
            "conversation": "\n\n".join(map(_spoken, row["messages"])),
        }
        for row in transcripts(evaluation, count)
    ]


def _spoken(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    calls = message.get("tool_calls")
    calls_text = f"\n{json.dumps(calls, ensure_ascii=False)}" if calls else ""
    return f"[{message.get('role')}] {text}{calls_text}"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute."""
    versions_by_package = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions_by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions_by_package[package] = "not installed"
    return versions_by_package
