"""Results as a person reads them: the accuracy table, and where things were written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def accuracy_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of `trainer.statistics.AccuracyRow`s."""
    table = Table("", "accuracy", "95 % interval", "correct", title="Accuracy")
    for row in rows:
        table.add_row(
            str(row["name"]),
            f"{100 * row['accuracy']:.1f} %",
            f"{100 * row['low']:.1f} – {100 * row['high']:.1f} %",
            f"{row['correct']:g} of {row['count']}",
        )
    return table


def show_result(console: Console, summary: Mapping[str, Any], *, written: Sequence[Path] = ()) -> None:
    """Print the accuracies of a summary, why rollouts were left out, and those of the `written` paths that exist."""
    rows = summary.get("accuracy") or []
    if rows:
        console.print(accuracy_table(rows))
    for key, consequence in (("untrained", "not trained"), ("failed", "counted as wrong")):
        for reason, count in (summary.get(key) or {}).items():
            console.print(f"{count} rollouts {consequence}: {reason}", style="yellow", markup=False, soft_wrap=True)
    for path in written:
        if path.exists():
            console.print(f"wrote {path}", highlight=False, soft_wrap=True, markup=False)


def show_plan(console: Console, plan: Mapping[str, Any]) -> None:
    """Print a memory plan and the options of `train` that go with it."""
    table = Table("", "when", "MB", title="Memory")
    table.columns[2].justify = "right"
    for part in plan["parts"]:
        table.add_row(part["name"], part["phase"], f"{part['bytes'] / 1e6:,.0f}")
    table.add_section()
    table.add_row("peak", "", f"{plan['peak_bytes'] / 1e6:,.0f}")
    console.print(table)
    console.print(f"mini-agentic-rl train {plan['options']}", highlight=False, soft_wrap=True, markup=False)
