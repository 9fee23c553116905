"""`evaluations.jsonl`: every answer of every measurement of a run, their accuracies, and comparisons of runs by them.

The file is written whole at each measurement (`algorithm.rollouts` documents a row). A resumed run repeats the
measurements after its checkpoint, and their rows are replaced.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from ..algorithm import OF_TRANSFER
from ..errors import UserError
from ..files import read_json, write_text
from ..rewards import extract_answer, normalise_answer
from .statistics import (
    AccuracyRow,
    bootstrap_interval,
    compare_shares,
    holm,
    mean_row,
    pass_at_k,
)

AnswerRows: TypeAlias = Sequence[Mapping[str, Any]]
Check: TypeAlias = Literal["correct", "lenient"]
"""A check of an answer: the strict one, which is the reward, and the lenient one."""

CHECKS: Final[Mapping[Check, str]] = {"correct": "strict", "lenient": "lenient"}
"""Checks with the words for them."""
_NEEDED: Final = ("evaluation", "hash", "correct")


def read_answers(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none if there is no such file.

    Raises:
        UserError: a line is no row of a measurement.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or any(name not in row for name in _NEEDED):
            raise UserError(f"{path}, line {number}: no answer of a measurement")
        rows.append(row)
    return rows


def add_answers(path: Path, rows: AnswerRows, keep: Collection[str]) -> None:
    """Add the rows of a measurement to a file, whole or not at all.

    Args:
        keep: names of the earlier measurements that stay.

    Raises:
        OSError: it cannot be written; the earlier file is untouched.
        UserError: the file is damaged.
    """
    new = {row["evaluation"] for row in rows}
    kept = [row for row in read_answers(path) if row["evaluation"] in keep and row["evaluation"] not in new]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in (*kept, *rows))
    write_text(path, text, private=True)


def by_evaluation(rows: AnswerRows) -> dict[str, list[Mapping[str, Any]]]:
    """Return the rows of each measurement by its name, in order."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row["evaluation"]), []).append(row)
    return groups


def by_problem(rows: AnswerRows) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    """Return the answers to each problem of one measurement. A question that comes several times is several problems:
    the first, the second ... of its hash."""
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    seen: dict[tuple[str, int], int] = {}
    for row in rows:
        sample = int(row.get("sample", 0))
        occurrence = seen.get((row["hash"], sample), 0)
        seen[row["hash"], sample] = occurrence + 1
        groups.setdefault((str(row["hash"]), occurrence), []).append(row)
    return groups


def is_checked(rows: AnswerRows, check: Check) -> bool:
    """Return True if every answer of a measurement was checked like this."""
    return bool(rows) and all(row.get(check) is not None for row in rows)


def shares(rows: AnswerRows, check: Check) -> dict[tuple[str, int], Fraction]:
    """Return the share of right answers to each problem."""
    return {
        problem: Fraction(sum(bool(row[check]) for row in answers), len(answers))
        for problem, answers in by_problem(rows).items()
    }


def accuracy_rows(rows: AnswerRows, check: Check = "correct") -> list[AccuracyRow]:
    """Return the accuracies of a measurement: pass@1 and, of several answers to each problem, pass@k and maj@k.

    pass@k is the unbiased estimator (Chen et al. 2021, equation 1) for k = 2, 4, 8 ... and the number of answers; maj@k
    is the majority of all answers. Intervals are Wilson's for one answer to each problem, else those of the bootstrap
    over problems.
    """
    problems = list(by_problem(rows).values())
    right = [[bool(row[check]) for row in answers] for answers in problems]
    samples = min(map(len, right), default=0)
    ending = "" if check == "correct" else f", {CHECKS[check]}"
    lines = [mean_row(f"pass@1{ending}", [sum(answers) / len(answers) for answers in right], binary=samples == 1)]
    drawn = sorted({2**power for power in range(1, samples.bit_length())} | {samples}) if samples > 1 else []
    for k in drawn:
        lines.append(mean_row(f"pass@{k}{ending}", [pass_at_k(len(answers), sum(answers), k) for answers in right]))
    if check == "correct" and samples > 2:
        # Of two votes the majority is either of them, as for pass@1.
        lines.append(mean_row(f"maj@{samples}", [majority_share(answers) for answers in problems]))
    return lines


def majority_share(answers: AnswerRows) -> float:
    """Return the share of the most frequent answers to a problem that are right: 1 or 0, or a fraction where several
    tie; 0 if there is none. An answer is right if the lenient check, or else the strict one, has passed it once."""
    counts: Counter[str] = Counter()
    right: set[str] = set()
    for row in answers:
        answer = None if row.get("answer") is None else extract_answer(row["answer"])
        if answer is None:
            continue
        vote = normalise_answer(answer)
        counts[vote] += 1
        if row["correct"] if row.get("lenient") is None else row["lenient"]:
            right.add(vote)
    leaders = [vote for vote, count in counts.items() if count == max(counts.values())]
    return sum(vote in right for vote in leaders) / max(1, len(leaders))


def check_rows(rows: AnswerRows) -> list[dict[str, Any]]:
    """Return, for each measurement, the lenient accuracy and the mean of each named component of its reward: `name`
    (of the measurement), `check`, `mean`, `low`, `high`, `count`."""
    lines = []
    for name, answers in by_evaluation(rows).items():
        if is_checked(answers, "lenient"):
            line = accuracy_rows(answers, "lenient")[0]
            lines.append(_line(name, "lenient", line["accuracy"], line["low"], line["high"], line["count"]))
        scored = [row for row in answers if row.get("components")]
        for component in dict.fromkeys(key for row in scored for key in row["components"] if key != "lenient"):
            means = [
                sum(row["components"].get(component, 0.0) for row in answers) / len(answers)
                for answers in by_problem(scored).values()
            ]
            if all(0 <= mean <= 1 for mean in means):
                of_shares = mean_row(component, means, binary=set(means) <= {0.0, 1.0})
                low, high = of_shares["low"], of_shares["high"]
            else:
                low, high = bootstrap_interval(means)
            lines.append(_line(name, component, sum(means) / len(means), low, high, len(means)))
    return lines


def _line(name: str, check: str, mean: float, low: float, high: float, count: int) -> dict[str, Any]:
    return {"name": name, "check": check, "mean": mean, "low": low, "high": high, "count": count}


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
    evaluations = by_evaluation(_answers(path))
    if not evaluations:
        raise UserError(f"{path} kept no answers: measure it again, by `eval --output FILE`")
    held_out = [name for name in evaluations if not name.endswith(OF_TRANSFER)]
    name = (held_out or list(evaluations))[-1] if wanted is None else wanted
    if name not in evaluations:
        raise UserError(f"{path} has no measurement {name!r}: it has {', '.join(map(repr, evaluations))}")
    return MeasuredRun(spec, name, evaluations[name])


def _answers(path: Path) -> AnswerRows:
    if path.is_dir():
        return read_answers(path / "evaluations.jsonl")
    if path.suffix == ".jsonl":
        return read_answers(path)
    try:
        rows = read_json(path).get("answers", [])
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) and set(_NEEDED) <= set(row) for row in rows):
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
        UserError: fewer than two runs, one that is given twice, or two without a common problem.
    """
    if len(runs) < 2:
        raise UserError("give two runs or more: the folder of a run, or what `eval --output` wrote")
    twice = [name for name, count in Counter(run.name for run in runs).items() if count > 1]
    if twice:
        raise UserError(f"{twice[0]} is given twice: give another run, or as FOLDER:NAME another measurement")
    comparisons: list[dict[str, Any]] = []
    for check in CHECKS:
        checked = [run for run in runs if is_checked(run.rows, check)]
        compared = [_comparison(runs[0], run, check) for run in checked if run is not runs[0] and runs[0] in checked]
        for row, p in zip(compared, holm([row["p"] for row in compared]), strict=True):
            comparisons.append({**row, "p_holm": p})
    return {"runs": [_described(run) for run in runs], "comparisons": comparisons}


def _described(run: MeasuredRun) -> dict[str, Any]:
    description: dict[str, Any] = {"run": run.name, "evaluation": run.evaluation, "answers": len(run.rows)}
    for check, word in CHECKS.items():
        if is_checked(run.rows, check):
            values = [float(share) for share in shares(run.rows, check).values()]
            row = mean_row(word, values, binary=len(values) == len(run.rows))
            description |= {"problems": len(values), word: {name: row[name] for name in ("accuracy", "low", "high")}}
    return description


def _comparison(first: MeasuredRun, second: MeasuredRun, check: Check) -> dict[str, Any]:
    difference = compare_answers(first.rows, second.rows, check)
    if difference is None:
        raise UserError(
            f"{first.name} ({first.evaluation}) and {second.name} ({second.evaluation}) have no problem in common: "
            "measure them on the same ones, with the same `dataset`, `split`, `size` and `seed`"
        )
    return {"first": first.name, "second": second.name, "check": CHECKS[check], **difference}


def compare_answers(first: AnswerRows, second: AnswerRows, check: Check) -> dict[str, Any] | None:
    """Return the fields of a comparison from `problems` to `p`, as `compare_runs`; None without a common problem."""
    first_shares, second_shares = shares(first, check), shares(second, check)
    pairs = [(share, second_shares[problem]) for problem, share in first_shares.items() if problem in second_shares]
    if not pairs:
        return None
    paired = compare_shares([a for a, _ in pairs], [b for _, b in pairs])
    return {
        "problems": len(pairs),
        "left_out": [len(first_shares) - len(pairs), len(second_shares) - len(pairs)],
        "accuracy": [float(sum(a for a, _ in pairs) / len(pairs)), float(sum(b for _, b in pairs) / len(pairs))],
        "difference": paired.difference,
        "low": paired.low,
        "high": paired.high,
        "better": sum(b > a for a, b in pairs),
        "worse": sum(b < a for a, b in pairs),
        "p": paired.p,
    }
