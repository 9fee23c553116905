"""`watch`: a live view of a run in another process, from its files."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...commands.doctor import DoctorSettings
from ...commands.options import MEASURE, settings_command
from ...config import PollSettings, Settings, restated
from ...errors import UserError
from ...files import is_written
from ...metrics import (
    ConsoleLogger,
    finding_text,
    held_out,
    percent,
    quantity,
    read_metrics,
    step_label,
    steps_table,
)
from ...metrics import duration as as_duration
from ...visible_text import VisibleConsole, visible_argument, visible_line

if TYPE_CHECKING:
    from . import Examined, ShownRun

_SHOWN_STEPS = 10
_STALE_SECONDS = 3600.0
"""Seconds without metrics after which a run counts as interrupted."""


class WatchSettings(Settings):
    """Settings of `watch`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {"Watch": ("run", "once", "poll_seconds")}

    run: Path = restated(DoctorSettings, "run", ..., "Folder of a run, as `train` names it by --output-dir.")
    once: bool = restated(PollSettings, "once", False, "Show the state once, and end.")
    poll_seconds: float = restated(PollSettings, "poll_seconds", 2.0, "Seconds between two looks.")


@dataclass(frozen=True)
class Glance:
    """The state of a run at one moment."""

    state: str
    """`finished`, `running`, or `interrupted`."""
    facts: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    totals: Mapping[str, Any]
    examined: Examined


def watch_run(settings: WatchSettings) -> None:
    """Show a running training: its steps, its rollouts, and what the doctor finds; ends when the run ends."""
    asyncio.run(_watch(settings))


async def _watch(settings: WatchSettings) -> None:
    from . import close_sources, run_sources

    if not settings.run.expanduser().is_dir():
        raise UserError(f"{settings.run}: there is no such folder; name the folder of a run", setting="run")
    sources = run_sources([settings.run])
    try:
        if settings.once:
            VisibleConsole().print(_page(await _look(sources[0])))
        else:
            await _follow(sources[0], settings)
    finally:
        await close_sources(sources)


async def _follow(source: ShownRun, settings: WatchSettings) -> None:
    console = VisibleConsole()
    if not sys.stdout.isatty():
        await _print_lines(source, settings)
        return
    glance = await _look(source)
    with Live(_page(glance), console=console, refresh_per_second=2) as live:
        while glance.state == "running":
            await asyncio.sleep(settings.poll_seconds)
            glance = await _look(source)
            live.update(_page(glance))
    console.print(_end(glance, settings.run))


async def _print_lines(source: ShownRun, settings: WatchSettings) -> None:
    """Print a line for each event, if the output is no terminal."""
    console = VisibleConsole(width=200)
    printed, phase = 0, None
    with ConsoleLogger(console) as logger:
        while True:
            glance = await _look(source)
            for row in glance.rows[printed:]:
                if row.get("phase") != phase:
                    phase = row.get("phase")
                    logger.phase(str(phase))
                logger.log(_numbers(row), step=int(row.get("step", 0)))
            printed = len(glance.rows)
            if glance.state != "running":
                break
            await asyncio.sleep(settings.poll_seconds)
    console.print(_end(glance, settings.run))


async def _look(source: ShownRun) -> Glance:
    from . import examine

    assert source.folder is not None  # `run_sources` gives it one
    path = source.folder.path
    facts = await asyncio.to_thread(source.facts)
    rows = await asyncio.to_thread(read_metrics, source.folder.metrics_path)
    silent = time.time() - float(rows[-1]["time"]) if rows else 0.0
    if facts["state"] == "finished":
        state = "finished"
    else:
        state = "running" if is_written(path) and silent < _STALE_SECONDS else "interrupted"
    try:
        totals = await source.totals()
    except UserError:  # an older store version, which the doctor reports
        totals = {}
    return Glance(state, facts, rows, totals, await examine(source))


def _page(glance: Glance) -> RenderableType:
    parts: list[RenderableType] = [_head(glance)]
    measured = glance.facts.get("intervals") or []
    if measured:
        parts.append(_measurements(measured))
    steps = [(step_label(_numbers(row), int(row.get("step", 0))), _numbers(row)) for row in glance.rows]
    without_evaluations = [step for step in steps if not any(name.endswith("accuracy") for name in step[1])]
    shown = [(label, held_out(row) or row) for label, row in without_evaluations][-_SHOWN_STEPS:]
    if shown:
        parts.append(steps_table(shown))
    parts += [finding_text(finding) for finding in glance.examined.findings]
    return Group(*parts)


def _head(glance: Glance) -> Text:
    last = glance.facts.get("last") or {}
    config = glance.facts.get("config") or {}
    parts = [f"{visible_line(glance.facts['name'])}: {glance.state}"]
    if last.get("phase"):
        parts.append(visible_line(str(last["phase"])))
    reached = len(glance.examined.view.steps)
    if reached:
        total = config.get("total_steps")
        parts.append(f"step {reached}" + (f" of {total}" if isinstance(total, int) else ""))
    if glance.state == "running" and last.get("time"):
        parts.append(f"last numbers {as_duration(max(0.0, time.time() - float(last['time'])))} ago")
    status = glance.totals.get("status") or {}
    if status:
        parts.append("rollouts: " + ", ".join(f"{count:,} {name}" for name, count in sorted(status.items())))
    return Text("  ".join(parts), "bold")


def _measurements(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in rows:
        interval = f"{100 * row['low']:.1f} – {percent(row['high'])}"
        table.add_row(
            Text(visible_line(str(row["name"]))), quantity("accuracy", row["accuracy"]), Text(interval, "dim")
        )
    return table


def _end(glance: Glance, run: Path) -> Text:
    if glance.state == "finished":
        return Text(f"finished: mini-agentic-rl report {visible_argument(run)} draws its curves", "dim")
    return Text("no process writes this run any more, and it has no summary: --resume continues it", "dim")


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if name not in ("time", "step") and isinstance(value, int | float)
    }


def add_watch_command(app: typer.Typer) -> None:
    """Add `watch` to the commands of the package."""
    settings_command(app, "watch", WatchSettings, log_level="WARNING", panel=MEASURE, has_file=False)(watch_run)
