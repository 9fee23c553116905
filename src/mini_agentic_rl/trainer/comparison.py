"""Runs compared with each other on the same problems, by the answers that they kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..algorithm import OF_TRANSFER
from ..errors import UserError
from ..files import read_json
from .evaluations import CHECKS, AnswerRows, Check, by_evaluation, is_checked, read_answers, shares
from .intervals import mean_row
from .paired import compare_shares, holm
from .run_folder import RunFolder


@dataclass(frozen=True)
class MeasuredRun:
    """One measurement of a run."""

    name: str
    """Name of the run on the command line."""
    evaluation: str
    """Name of the measurement."""
    rows: AnswerRows
    """Its answers."""


def load_run(spec: str, evaluation: str | None = None) -> MeasuredRun:
    """Return a measurement of a run folder, or of a file that `eval --output` wrote.

    Args:
        spec: the path; with ":NAME" behind it, that measurement.
        evaluation: the measurement where the path names none; None takes the last, not counting those of the
            split `transfer` where there are others.

    Raises:
        UserError: there is no such path or measurement, or it kept no answers.
    """
    path, wanted = Path(spec), evaluation
    if not path.exists() and ":" in spec:
        before, _, after = spec.rpartition(":")
        path, wanted = Path(before), after
    if not path.exists():
        raise UserError(f"{path} does not exist: give the folder of a run, or what `eval --output` wrote")
    found = by_evaluation(_answers(path))
    if not found:
        raise UserError(f"{path} kept no answers: measure it again, by `eval --output FILE`")
    name = _last(found) if wanted is None else wanted
    if name not in found:
        raise UserError(f"{path} has no measurement {name!r}: it has {', '.join(map(repr, found))}")
    return MeasuredRun(spec, name, found[name])


def _last(evaluations: Collection[str]) -> str:
    """Return the last measurement on the run's own held-out tasks, or the last of all where there is none on them."""
    own = [name for name in evaluations if not name.endswith(OF_TRANSFER)]
    return (own or list(evaluations))[-1]


def _answers(path: Path) -> AnswerRows:
    if path.is_dir():
        return read_answers(RunFolder(path).evaluations_path)
    if path.suffix == ".jsonl":
        return read_answers(path)
    try:
        rows = read_json(path).get("answers", [])
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and {"evaluation", "hash", "correct"} <= set(row) for row in rows
    ):
        raise UserError(f"{path} holds no answers of a measurement")
    return rows


def compare_runs(runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """Compare every run with the first, on the problems that both have, by the strict check and, where every answer
    of both has it, by the lenient one.

    Returns:
        `runs`: `run`, `evaluation`, `problems`, `answers`, and by check the accuracy on all of its problems.
        `comparisons`: `first`, `second`, `check`, `problems` (that both have), `left_out` (of each of the two),
        `accuracy` (of the two), `difference`, `low`, `high` (the 95 % interval), `better`, `worse` (problems on which
        the second does better and worse), `p` (exact, two-sided), and `p_holm`, corrected for the number of
        comparisons by one check.

    Raises:
        UserError: fewer than two runs, or two without a common problem.
    """
    if len(runs) < 2:
        raise UserError("give two runs or more: the folder of a run, or what `eval --output` wrote")
    comparisons: list[dict[str, Any]] = []
    for check in CHECKS:
        checked = [run for run in runs if is_checked(run.rows, check)]
        found = [_comparison(runs[0], run, check) for run in checked if run is not runs[0] and runs[0] in checked]
        for row, p in zip(found, holm([row["p"] for row in found]), strict=True):
            comparisons.append({**row, "p_holm": p})
    return {"runs": [_described(run) for run in runs], "comparisons": comparisons}


def _described(run: MeasuredRun) -> dict[str, Any]:
    found: dict[str, Any] = {"run": run.name, "evaluation": run.evaluation, "answers": len(run.rows)}
    for check, word in CHECKS.items():
        if is_checked(run.rows, check):
            values = [float(share) for share in shares(run.rows, check).values()]
            row = mean_row(word, values, binary=len(values) == len(run.rows))
            found |= {"problems": len(values), word: {name: row[name] for name in ("accuracy", "low", "high")}}
    return found


def _comparison(first: MeasuredRun, second: MeasuredRun, check: Check) -> dict[str, Any]:
    one, other = shares(first.rows, check), shares(second.rows, check)
    common = [problem for problem in one if problem in other]
    if not common:
        raise UserError(
            f"{first.name} ({first.evaluation}) and {second.name} ({second.evaluation}) have no problem in common: "
            "measure them on the same ones, with the same `dataset`, `split`, `size` and `seed`"
        )
    pairs = [(one[problem], other[problem]) for problem in common]
    found = compare_shares([a for a, _ in pairs], [b for _, b in pairs])
    return {
        "first": first.name,
        "second": second.name,
        "check": CHECKS[check],
        "problems": len(common),
        "left_out": [len(one) - len(common), len(other) - len(common)],
        "accuracy": [float(sum(a for a, _ in pairs)) / len(pairs), float(sum(b for _, b in pairs)) / len(pairs)],
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "better": sum(b > a for a, b in pairs),
        "worse": sum(b < a for a, b in pairs),
        "p": found.p,
    }
