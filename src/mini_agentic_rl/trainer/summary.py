"""The results that a run leaves to read: its summary, some conversations, and the versions of what computed."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..adapter import TraceToMessages
from ..algorithm import Algorithm, answer_rows
from ..metrics import RunView, diagnose, read_metrics
from ..processes import peak_memory_bytes
from .evaluations import by_evaluation, check_rows, read_answers
from .report import write_report
from .run_folder import RunFolder
from .statistics import accuracy_row
from .verdict import verdict_lines, verdict_of

if TYPE_CHECKING:
    from ..algorithm import Evaluation

_PACKAGES = ("mini-agentic-rl", "torch", "transformers", "peft", "numpy")
_TRANSCRIPTS = 6


def what_next(folder: RunFolder) -> list[str]:
    """Return the last lines of a run: the verdict, its folder, and the commands that use what it trained."""
    lines = verdict_lines(folder.read_summary().get("verdict"))
    lines.append(f"the run is in {folder.path}: {folder.report_path.name} has its curves and transcripts")
    if folder.adapter_path.is_dir():
        adapter = shlex.quote(str(folder.adapter_path))
        lines.append(f"to use what was trained: mini-agentic-rl chat --adapter {adapter}")
        lines.append(f"or behind a URL:         mini-agentic-rl serve --adapter {adapter}")
    return lines


def write_results(
    folder: RunFolder, algorithm: Algorithm, *, seconds: float, about: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write the report of a run that has ended, and return its summary, which is still to be written.

    Args:
        seconds: that this process took.
        about: what else belongs into the summary.

    Raises:
        UserError: the report cannot be written.
    """
    _save_missing_answers(folder, algorithm)
    answers, metrics = read_answers(folder.evaluations_path), read_metrics(folder.metrics_path)
    checks = check_rows(answers)
    summary = {**run_summary(algorithm, seconds=seconds), **({"checks": checks} if checks else {}), **(about or {})}
    settings = getattr(algorithm, "settings", None)
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
        conversations: what the report shows as transcripts.

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


def _save_missing_answers(folder: RunFolder, algorithm: Algorithm) -> None:
    """Keep the answers of measurements that the algorithm has not kept itself."""
    kept = set(by_evaluation(read_answers(folder.evaluations_path)))
    for evaluation in algorithm.evaluations:
        if evaluation.name not in kept:
            folder.save_answers(answer_rows(evaluation), kept)
            kept.add(evaluation.name)


def run_summary(algorithm: Algorithm, *, seconds: float) -> dict[str, Any]:
    """Return what a run came to, as JSON values: the summary of the algorithm, with intervals of its accuracies, time,
    memory, versions and the seed."""
    found: dict[str, Any] = json.loads(json.dumps(dict(algorithm.summary), default=str))
    rows = found.get("accuracy")
    if isinstance(rows, list):
        found["accuracy"] = [accuracy_row(row["name"], row["correct"], row["count"]) for row in rows]
    spent = found.get("seconds")
    found["seconds"] = {**(spent if isinstance(spent, dict) else {}), "this process": seconds}
    found |= {"peak_memory_bytes": peak_memory_bytes(), "versions": versions()}
    seed = getattr(getattr(algorithm, "settings", None), "seed", None)
    return found if seed is None else {**found, "seed": seed}


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
    said = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    calls = message.get("tool_calls")
    called = f"\n{json.dumps(calls, ensure_ascii=False)}" if calls else ""
    return f"[{message.get('role')}] {said}{called}"


def versions() -> dict[str, str]:
    """Return the versions of what computes."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
