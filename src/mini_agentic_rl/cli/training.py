"""`train` and `sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ..jobs import SweepSettings, TrainConfig, with_agent_defaults
from ..metrics import percent
from ..visible_text import visible_line
from .options import TRAIN, settings_command
from .tables import show, show_result


def add_training_commands(app: typer.Typer) -> None:
    """Add the commands to `app`."""

    @settings_command(app, "train", TrainConfig, panel=TRAIN)
    def train(settings: TrainConfig) -> None:
        """Train an agent: measure it, warm it up, reinforce it, measure it again, and write a report."""
        train_and_show(with_agent_defaults(settings))

    @settings_command(app, "sweep", SweepSettings, panel=TRAIN)
    def sweep(settings: SweepSettings) -> None:
        """Train with several settings and seeds in turn, and show one table; what was stopped goes on with --resume."""
        from ..jobs import sweep_job

        found = sweep_job(settings)
        show(settings, found, lambda console: show_sweep(console, found))


def train_and_show(settings: TrainConfig) -> None:
    """Train, and show the summary."""
    from ..jobs import train_job
    from ..trainer import RunFolder, what_next

    summary = train_job(settings)
    if not summary:  # of runners alone
        return
    folder = RunFolder(settings.run.output_dir)
    written = [folder.adapter_path, folder.summary_path, folder.metrics_path, folder.report_path]
    show(settings, summary, lambda console: show_result(console, summary, written=written, then=what_next(folder)))


def show_sweep(console: Console, found: Mapping[str, Any]) -> None:
    """Print the table of a sweep, and the runs that failed."""
    setting_column = Column("setting", overflow="fold")  # cut off, two settings could look alike
    table = Table(setting_column, "seeds", "measurement", "mean", "95 % interval", "to the first", title="Sweep")
    for row in found["rows"]:
        setting = ", ".join(f"{name}={value}" for name, value in row["settings"].items()) or "as given"
        begins = (Text(visible_line(setting)), ", ".join(map(str, row["seeds"])))
        compared = next((name for name in reversed(row["measurements"]) if not name.endswith(", lenient")), None)
        for name, measured in row["measurements"].items():
            interval = f"{100 * measured['low']:.1f} – {percent(measured['high'])}"
            difference = _difference(row["against_first"]) if name == compared else ""
            table.add_row(*begins, Text(visible_line(name)), percent(measured["mean"]), interval, difference)
            begins = (Text(""), "")
        table.add_section()
    console.print(table)
    for run in found["runs"]:
        if run["failed"] is not None:
            console.print(f"{run['name']} failed: {run['failed']}", style="yellow", markup=False, soft_wrap=True)


def _difference(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    interval = "" if found["low"] is None else f" ({_points(found['low'])} – {_points(found['high'])})"
    return f"{_points(found['difference'])}{interval}"


def _points(share: float) -> str:
    """Return a difference of shares as percentage points with their sign."""
    return f"{round(100 * share, 1) + 0.0:+.1f}"  # the sum makes 0.0 of -0.0
