"""`train-sql`: the SQL agent, measured before, between and after."""

from __future__ import annotations

import typer

from ...commands import train_and_show
from ...commands.options import TRAIN, settings_command
from .job import SqlTrainConfig


def train_sql(settings: SqlTrainConfig) -> None:
    """Train the SQL agent: it answers questions about a database; measured before, between and after."""
    train_and_show(settings)


def add_sql_command(app: typer.Typer) -> None:
    """Add `train-sql` to the commands of the package."""
    settings_command(app, "train-sql", SqlTrainConfig, panel=TRAIN)(train_sql)
