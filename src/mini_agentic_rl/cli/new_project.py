"""`new`: a project to begin with."""

from __future__ import annotations

import shlex

import typer

from ..jobs import NewSettings
from .options import TRAIN, settings_command


def add_new_command(app: typer.Typer) -> None:
    """Add `new` to the commands of the package."""

    @settings_command(app, "new", NewSettings, panel=TRAIN, has_file=False)
    def new(settings: NewSettings) -> None:
        """Write a small project that runs at once: an agent, its tasks, a reward, settings, and a test.

        `mini-agentic-rl new my-agent` writes the folder my-agent; `mini-agentic-rl train --config train.yaml` in it
        trains. Then change one file after another into your own: agent.py, reward.py, tasks/.
        """
        from ..jobs import new_job

        for path in new_job(settings):
            typer.echo(f"wrote {path}")
        typer.echo(f"next: cd {shlex.quote(str(settings.project))} && mini-agentic-rl train --config train.yaml")
