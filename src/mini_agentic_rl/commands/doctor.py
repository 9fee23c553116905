"""`doctor`: find what is wrong with a run; without a run, check this computer and recommend settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import typer
from pydantic import Field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..config import JsonSettings
from ..metrics import WINDOW, counted, finding_text, number
from ..plugins import load_part
from ..visible_text import visible_argument, visible_line
from .options import with_options
from .tables import show
from .train_config import TrainConfig

_FAULT = 1
_COLOURS = {"ok": "green", "note": "yellow", "fault": "red"}


class DoctorSettings(JsonSettings):
    """Settings of `doctor`."""

    helps: ClassVar[Mapping[str, str]] = {"json_output": "Print the findings as JSON."}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {"Doctor": ("run", "speed_test"), "Output": ("json_output",)}

    run: Path | None = Field(default=None, json_schema_extra={"argument": True})
    """Folder of a run, which may still be going on; without one the installation and the computer are checked."""
    speed_test: bool = True
    """Without a run: measure for ten seconds how fast this computer samples and learns. `plan` uses these rates."""


def doctor(settings: DoctorSettings) -> None:
    """Say what is wrong with a run and which setting to change; without a run, check this computer and recommend
    settings.

    The exit code is 1 if a fault is found, else 0.
    """
    if settings.run is None:
        from .checkup import checkup

        result = checkup(speed_test=settings.speed_test)
        show(settings, result, _show_checkup)
        faults = int(result["faults"])
    else:
        examined = asyncio.run(_examine(settings.run))
        show(settings, examined.as_json(), lambda console, _: _show_examined(console, examined, str(settings.run)))
        faults = sum(finding.level == "fault" for finding in examined.findings)
    if faults:
        raise typer.Exit(_FAULT)


async def _examine(run: Path) -> Any:
    dashboard = load_part("dashboard", setting="run")
    sources = dashboard.run_sources([run])
    try:
        return await dashboard.examine(sources[0])
    finally:
        await dashboard.close_sources(sources)


def _show_examined(console: Console, examined: Any, path: str) -> None:
    """Print the findings of a run, each with its advice in options of `train`, and an example."""
    view = examined.view
    read = ", ".join(
        [
            counted(len(view.steps), "step"),
            counted(len(view.measured), "measurement"),
            counted(len(view.rollouts), "of its rollouts", "of its newest rollouts"),
        ]
    )
    console.print(f"{visible_line(examined.name)}: looked at {read}")
    if examined.unread is not None:
        console.print(f"its rollouts were left out: {visible_line(examined.unread)}", style="yellow")
    if not view.steps and not view.rollouts:
        console.print("there is no step of reinforcement learning yet, so nothing can be said")
        return
    for finding in examined.findings:
        console.print()
        console.print(finding_text(finding, lambda text: with_options(TrainConfig, text)))
        if finding.rollouts:
            command = f"agl rollouts show {visible_line(finding.rollouts[0])} --store {visible_argument(path)}"
            console.print(f"see for example: {command}", style="dim")
    console.print()
    if 0 < len(view.steps) < WINDOW:
        console.print(f"the rules need {WINDOW} steps: look again when there are more", style="dim")
    verdict = "no other fault was found" if examined.findings else "no fault was found"
    console.print(f"{verdict} (rules: {', '.join(examined.healthy)})", style="dim")


def _show_checkup(console: Console, result: Mapping[str, Any]) -> None:
    """Print the checks, the speed, and the settings that follow."""
    for title in ("installation", "hardware"):
        table = Table(title=title.capitalize(), show_header=False, box=None, title_justify="left", pad_edge=False)
        for check in result[title]:
            text = Text(visible_line(check["found"]))
            if check["advice"]:
                text.append(f"\n→ {visible_line(check['advice'])}", _COLOURS[check["state"]])
            table.add_row(Text(check["state"], _COLOURS[check["state"]]), check["name"], text)
        console.print(table)
        console.print()
    speed = result["speed"]
    if speed is not None:
        is_shared = any(check["name"] == "Other work" and check["state"] != "ok" for check in result["hardware"])
        beside = ", beside the other work; run doctor again when that has ended" if is_shared else ""
        threads = counted(speed["threads"], "thread")
        rates = f"{number(speed['sampled'])} tokens/s sampled, {number(speed['learned'])} learned"
        minutes = number(round(result["train_minutes"]))
        console.print(f"Speed of {speed['model']} ({speed['dtype']}, {threads}): {rates}")
        console.print(f"`make train`, or `mini-agentic-rl train`, takes about {minutes} minutes here{beside}")
    if result["preset"] is not None:
        console.print(f"recommended: --preset 4gb ({result['preset']})")
