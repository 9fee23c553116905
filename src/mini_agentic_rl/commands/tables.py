"""Results printed as JSON or as Rich tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..config import JsonSettings
from ..metrics import counted, number, percent
from ..visible_text import VisibleConsole, visible_json, visible_line


def show(settings: JsonSettings, result: Any, tables: Callable[[Console], None], *, ascii_only: bool = False) -> None:
    """Print a result as JSON if the settings say so, else by calling `tables` with the console."""
    if settings.json_output:
        typer.echo(visible_json(json.dumps(result, indent=2, ensure_ascii=ascii_only)))
    else:
        tables(VisibleConsole())


def accuracy_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of `trainer.statistics.AccuracyRow`s."""
    table = Table("", "accuracy", "95 % interval", "correct", title="Accuracy")
    for row in rows:
        table.add_row(
            Text(visible_line(str(row["name"]))),
            percent(row["accuracy"]),
            f"{100 * row['low']:.1f} – {percent(row['high'])}",
            f"{row['correct']:g} of {row['count']}",
        )
    return table


def _check_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of `trainer.evaluations.check_rows`."""
    table = Table("", "check", "mean", "95 % interval", title="Other checks of the same answers")
    for row in rows:
        name, check = (Text(visible_line(str(row[key]))) for key in ("name", "check"))
        table.add_row(name, check, number(row["mean"]), f"{number(row['low'])} – {number(row['high'])}")
    return table


def show_result(
    console: Console, summary: Mapping[str, Any], *, written: Sequence[Path] = (), then: Sequence[str] = ()
) -> None:
    """Print a summary: accuracies, other checks of the answers, and why rollouts were left out.

    Args:
        written: paths of results, of which the existing ones are printed.
        then: lines on what to do next.
    """
    rows = summary.get("accuracy") or []
    if rows:
        console.print(accuracy_table(rows))
    if summary.get("checks"):
        console.print(_check_table(summary["checks"]))
    for key, consequence in (("untrained", "not trained"), ("failed", "counted as wrong")):
        for reason, count in (summary.get(key) or {}).items():
            console.print(
                f"{counted(count, 'rollout')} {consequence}: {reason}", style="yellow", markup=False, soft_wrap=True
            )
    for path in written:
        if path.exists():
            console.print(f"wrote {path}", highlight=False, soft_wrap=True, markup=False)
    for line in then:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
