"""`compare`: compare runs on the same problems, by their recorded answers. Loads no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field
from rich.console import Console
from rich.table import Table

from ..config import JsonSettings
from ..metrics import counted, percent
from ..trainer import compare_runs, load_run
from ..visible_text import visible_line
from .tables import show


class CompareSettings(JsonSettings):
    """The settings of `compare`."""

    runs: list[str] = Field(default=[], json_schema_extra={"argument": True})
    """Folders of runs, or files of `eval --output`; the first is the baseline. FOLDER:NAME selects the measurement NAME
    of a run, as "outputs/mine:before"."""
    evaluation: str | None = None
    """Measurement of every run, as "after RL"; by default the last on the held-out tasks, not on those of
    `transfer`."""


_SIGNIFICANT: Final = 0.05
"""Bound of a p-value, corrected for the number of comparisons."""


def compare(settings: CompareSettings) -> None:
    """Compare runs, or outputs of `eval`, with the first one on their common problems, by a paired test."""
    result = compare_runs([load_run(run, settings.evaluation) for run in settings.runs])
    show(settings, result, _show_comparison)


def _show_comparison(console: Console, result: Mapping[str, Any]) -> None:
    """Print the accuracies of the runs, the differences to the first run, and a conclusion of one line each."""
    table = Table("", "run", "measurement", "problems", "strict", "lenient", title="Runs")
    for number, run in enumerate(result["runs"], 1):
        accuracies = []
        for row in (run.get("strict"), run.get("lenient")):
            interval = "" if row is None else f"{100 * row['low']:.1f} – {100 * row['high']:.1f}"
            accuracies.append("" if row is None else f"{percent(row['accuracy'])} ({interval})")
        names = (visible_line(str(run[key])) for key in ("run", "evaluation"))
        table.add_row(str(number), *names, str(run["problems"]), *accuracies)
    console.print(table)
    numbers = {run["run"]: str(number) for number, run in enumerate(result["runs"], 1)}
    table = Table("", "check", "difference", "95 % interval", "better", "worse", "p", title="Differences")
    for row in result["comparisons"]:
        points = f"{100 * row['low']:+.1f} – {100 * row['high']:+.1f}"
        # By Holm's correction in brackets, where it differs.
        values = dict.fromkeys("<0.0001" if p < 0.0001 else f"{p:.4f}" for p in (row["p"], row["p_holm"]))
        p = " (".join(values) + ")" * (len(values) - 1)
        pair = f"{numbers[row['second']]} against {numbers[row['first']]}"
        difference = f"{100 * row['difference']:+.1f}"
        table.add_row(pair, row["check"], difference, points, str(row["better"]), str(row["worse"]), p)
    console.print(table)
    for row in result["comparisons"]:
        console.print(_conclusion(row))


def _conclusion(row: Mapping[str, Any]) -> str:
    """Return the conclusion of a comparison as a line."""
    second = visible_line(str(row["second"]))
    where = f"on {counted(row['problems'], 'problem')} that both have"
    left = sum(row["left_out"])
    where += f" ({left} that only one has are left out)" if left else ""
    if row["p_holm"] >= _SIGNIFICANT:
        return f"{row['check']}: no difference of {second} is shown {where}"
    return f"{row['check']}: {second} is {'better' if row['difference'] > 0 else 'worse'} {where}"
