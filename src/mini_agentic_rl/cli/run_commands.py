"""The commands that look at the folder of a run: `watch` and `report`."""

from __future__ import annotations

import typer

from .report import add_report_command
from .watch import add_watch_command


def add_run_commands(app: typer.Typer) -> None:
    """Add the commands to those of the package."""
    add_watch_command(app)
    add_report_command(app)
