"""`report`: writes the report of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import typer

from ...commands.doctor import DoctorSettings
from ...commands.options import MEASURE, settings_command
from ...config import Settings, restated
from ...errors import UserError


class ReportSettings(Settings):
    """Settings of `report`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {"Report": ("run", "output")}

    run: Path = restated(DoctorSettings, "run", ..., "Folder of a run, finished or not.")
    output: Path | None = None
    """File to write; by default `report.html` in the folder of the run."""


def write_report_of_run(settings: ReportSettings) -> None:
    """Write the report of a run again: accuracies, curves, transcripts and settings. The run may still be active."""
    typer.echo(f"wrote {asyncio.run(_write(settings))}")


async def _write(settings: ReportSettings) -> Path:
    from ...trainer import report_again
    from . import close_sources, run_sources, transcripts_of

    sources = run_sources([settings.run])
    try:
        source = sources[0]
        assert source.folder is not None  # `run_sources` gives it one
        measured = source.facts().get("intervals") or []
        target = settings.output or source.folder.report_path
        transcripts: list[dict[str, Any]] = []
        try:
            transcripts = await transcripts_of(source)
        except UserError as error:
            typer.echo(f"without transcripts: {error}", err=True)
        try:
            return report_again(source.folder, measured, transcripts, target)
        except OSError as error:
            raise UserError(f"{target} cannot be written: {error.strerror}", setting="output") from error
    finally:
        await close_sources(sources)


def add_report_command(app: typer.Typer) -> None:
    """Add `report` to the commands of the package."""
    settings_command(app, "report", ReportSettings, log_level="WARNING", panel=MEASURE, has_file=False)(
        write_report_of_run
    )
