"""`report`: the report of a run, at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from ...commands.doctor import DoctorSettings
from ...commands.options import MEASURE, settings_command
from ...config import Settings, restated
from ...errors import UserError

if TYPE_CHECKING:
    from . import ShownRun


class ReportSettings(Settings):
    """Settings of `report`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {"Report": ("run", "output")}

    run: Path = restated(DoctorSettings, "run", ..., "Folder of a run, finished or not.")
    output: Path | None = None
    """File to write; by default `report.html` in the folder of the run."""


def write_report_of_run(settings: ReportSettings) -> None:
    """Write the report of a run anew: accuracies, curves, transcripts and settings. The run may still be going on."""
    typer.echo(f"wrote {asyncio.run(_write(settings))}")


async def _write(settings: ReportSettings) -> Path:
    from ...trainer import report_again
    from . import close_sources, run_sources

    sources = run_sources([settings.run])
    try:
        source = sources[0]
        assert source.folder is not None  # it was made of one
        measured = source.facts().get("intervals") or []
        target = settings.output or source.folder.report_path
        with _writing(target):
            return report_again(source.folder, measured, await _transcripts(source), target)
    finally:
        await close_sources(sources)


async def _transcripts(source: ShownRun) -> list[dict[str, Any]]:
    """Return conversations for the report; none where the store cannot be read."""
    from . import transcripts_of

    try:
        return await transcripts_of(source)
    except UserError as error:
        typer.echo(f"without transcripts: {error}", err=True)
        return []


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Tell in one line that a file cannot be written.

    Raises:
        UserError: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}", setting="output") from error


def add_report_command(app: typer.Typer) -> None:
    """Add `report` to the commands of the package."""
    settings_command(app, "report", ReportSettings, log_level="WARNING", panel=MEASURE, has_file=False)(
        write_report_of_run
    )
