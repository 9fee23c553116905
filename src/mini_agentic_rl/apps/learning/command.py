"""`learn`: learns from the sessions of a server in use."""

from __future__ import annotations

import typer

from ...commands.options import TRAIN, settings_command
from ...metrics import counted
from .settings import LearnSettings


def learn(settings: LearnSettings) -> None:
    """Learn from the sessions of a server in use (serve --learn-from-use), and publish what was learnt to it."""
    from .job import learn_job  # torch is imported here, and not for --help

    done = learn_job(settings)
    steps, sessions = counted(done["steps"], "step"), counted(done["sessions"], "session")
    taken = f"{steps} on {sessions}" if done["steps"] else "no step was taken"
    typer.echo(f"{taken}; version {done['version']}")


def add_learn_command(app: typer.Typer) -> None:
    """Add `learn` to the commands of the package."""
    settings_command(app, "learn", LearnSettings, panel=TRAIN)(learn)
