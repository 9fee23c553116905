"""The table of a sweep: for each setting the means over its seeds, and how far it is from the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, TypeAlias

from .seed_means import seed_interval

Finished: TypeAlias = tuple[Mapping[str, str], int, Mapping[str, Any]]
"""Varied settings, seed and summary of a run."""

LENIENT = "lenient"


def sweep_rows(runs: Sequence[Finished]) -> list[dict[str, Any]]:
    """Return a row for each setting, in order.

    Returns:
        `settings`, `seeds`, `measurements`: for each by its name (the lenient check's as "NAME, lenient") `mean`, `low`
        and `high` over the seeds, and `values`. With a single seed the interval is that of its own problems.
        `seconds`: mean time of a run. `against_first`: of the last measurement, the mean difference to the first
        setting over the seeds that both have, with its interval where there are two or more.
    """
    by_setting: dict[tuple[tuple[str, str], ...], dict[int, Mapping[str, Any]]] = {}
    for varied, seed, summary in runs:
        by_setting.setdefault(tuple(varied.items()), {})[seed] = summary
    first = next(iter(by_setting.values()), {})
    rows = []
    for setting, summaries in by_setting.items():
        measured = [_measurements(summary) for summary in summaries.values()]
        names = list(dict.fromkeys(name for one in measured for name in one))
        rows.append(
            {
                "settings": dict(setting),
                "seeds": list(summaries),
                "measurements": {name: _over_seeds([one[name] for one in measured if name in one]) for name in names},
                "seconds": mean(_seconds(summary) for summary in summaries.values()),
                "against_first": None if summaries is first else _difference(first, summaries),
            }
        )
    return rows


def _measurements(summary: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    """Return the accuracies of a run by name, in order, the lenient check's behind the strict one's."""
    lenient = {
        f"{row['name']}, {LENIENT}": {"accuracy": row["mean"], "low": row["low"], "high": row["high"]}
        for row in summary.get("checks") or []
        if row["check"] == LENIENT
    }
    return {row["name"]: row for row in summary.get("accuracy") or []} | lenient


def _over_seeds(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    values = [float(row["accuracy"]) for row in rows]
    interval = seed_interval(values) or (rows[0]["low"], rows[0]["high"])
    return {"mean": mean(values), "low": max(0.0, interval[0]), "high": min(1.0, interval[1]), "values": values}


def _difference(
    first: Mapping[int, Mapping[str, Any]], other: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any] | None:
    differences = [
        float(other[seed]["accuracy"][-1]["accuracy"]) - float(first[seed]["accuracy"][-1]["accuracy"])
        for seed in first
        if seed in other and first[seed].get("accuracy") and other[seed].get("accuracy")
    ]
    if not differences:
        return None
    low, high = seed_interval(differences) or (None, None)
    return {"difference": mean(differences), "low": low, "high": high, "seeds": len(differences)}


def _seconds(summary: Mapping[str, Any]) -> float:
    return float(sum(spent for phase, spent in (summary.get("seconds") or {}).items() if phase != "this process"))
