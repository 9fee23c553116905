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


class ResultConsole(VisibleConsole):
    """Fits tables into the width of the terminal, and leaves the wrapping of lines of text to it."""

    def print(self, *objects: Any, **options: Any) -> None:
        options.setdefault("soft_wrap", all(isinstance(item, str | Text) for item in objects))
        super().print(*objects, **options)


def show(settings: JsonSettings, result: Any, tables: Callable[[Console, Any], None]) -> None:
    """Print a result as JSON if the settings say so, else by calling `tables` with a console and the result."""
    if settings.json_output:
        typer.echo(visible_json(json.dumps(result, indent=2, ensure_ascii=False)))
    else:
        tables(ResultConsole(), result)


def accuracy_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of `trainer.statistics.AccuracyRow`s."""
    table = Table("", "accuracy", "95 % interval", "correct", title="Accuracy")
    for row in rows:
        interval = f"{100 * row['low']:.1f} – {percent(row['high'])}"
        correct = f"{row['correct']:g} of {row['count']}"
        table.add_row(visible_line(str(row["name"])), percent(row["accuracy"]), interval, correct)
    return table


def show_result(
    console: Console, summary: Mapping[str, Any], *, written: Sequence[Path] = (), then: Sequence[str] = ()
) -> None:
    """Print a summary: accuracies, other checks of the answers, and why rollouts were left out.

    Args:
        written: paths of results, of which the existing ones are printed.
        then: lines on what to do next.
    """
    if summary.get("accuracy"):
        console.print(accuracy_table(summary["accuracy"]))
    if summary.get("checks"):
        means = {(row["check"], row["name"]): number(row["mean"]) for row in summary["checks"]}
        names = list(dict.fromkeys(row["name"] for row in summary["checks"]))
        table = Table("", *(visible_line(str(name)) for name in names), title="Other checks of the same answers, mean")
        for check in dict.fromkeys(row["check"] for row in summary["checks"]):
            table.add_row(visible_line(str(check)), *(means.get((check, name), "") for name in names))
        console.print(table)
    for key, consequence in (("untrained", "not trained"), ("failed", "counted as wrong")):
        for reason, count in (summary.get(key) or {}).items():
            console.print(f"{counted(count, 'rollout')} {consequence}: {reason}", style="yellow")
    for line in [*(f"wrote {path}" for path in written if path.exists()), *then]:
        console.print(line)
