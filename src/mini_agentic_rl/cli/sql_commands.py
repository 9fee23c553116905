"""The command that trains the SQL agent: `train-sql`."""

from __future__ import annotations

import json

import typer
from rich.console import Console

from ..jobs.config import SqlTrainConfig
from .options import settings_command
from .tables import show_result


def add_sql_commands(app: typer.Typer) -> None:
    """Add the command to the application."""

    @settings_command(app, "train-sql", SqlTrainConfig)
    def train_sql(settings: SqlTrainConfig) -> None:
        """Train the SQL agent: it answers questions about a database; measured before, between and after."""
        from ..jobs.train import train_job
        from ..trainer.run_folder import RunFolder

        summary = train_job(settings)
        if not summary:  # of runners alone
            return
        if settings.json_output:
            typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
            return
        folder = RunFolder(settings.run.output_dir)
        written = [folder.adapter_path, folder.summary_path, folder.metrics_path, folder.report_path]
        show_result(Console(), summary, written=written)
