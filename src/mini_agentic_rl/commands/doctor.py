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

from ..config import JsonSettings, Settings
from ..metrics import WINDOW, counted, finding_text, number
from ..plugins import load_part
from ..visible_text import visible_line
from .options import with_options
from .serve import ServeSettings
from .store_server import ServeStoreSettings
from .tables import show
from .train_config import TrainConfig

_FAULT = 1
_COLOURS = {"ok": "green", "note": "yellow", "fault": "red"}


class DoctorSettings(JsonSettings):
    """Settings of `doctor`."""

    helps: ClassVar[Mapping[str, str]] = {"json_output": "Print what was found as JSON."}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {"Doctor": ("run", "speed_test"), "Output": ("json_output",)}

    run: Path | None = Field(default=None, json_schema_extra={"argument": True})
    """Folder of a run, which may still be going on; without one the installation and the computer are checked."""
    speed_test: bool = True
    """Measure for ten seconds how fast this computer samples and learns, where no run is named."""


def doctor(settings: DoctorSettings) -> None:
    """Say what is wrong with a run and which setting to change; without a run, check this computer and recommend
    settings.

    Ends with status 1 where it finds a fault, with 0 where all is well or merely to be watched.
    """
    if settings.run is None:
        faults = _checked(settings)
    else:
        found = asyncio.run(_examined(settings.run))
        show(settings, found.as_json(), lambda console: show_examined(console, found, str(settings.run)))
        faults = sum(finding.level == "fault" for finding in found.findings)
    if faults:
        raise typer.Exit(_FAULT)


async def _examined(run: Path) -> Any:
    dashboard = load_part("dashboard", setting="run")
    sources = dashboard.run_sources([run])
    try:
        return await dashboard.examine(sources[0])
    finally:
        await dashboard.close_sources(sources)


def show_examined(console: Console, examined: Any, path: str) -> None:
    """Print what the doctor found in a run: each fault with its advice, in options of `train`, and examples."""
    view = examined.view
    looked = ", ".join(
        [
            counted(len(view.steps), "step"),
            counted(len(view.measured), "measurement"),
            counted(len(view.rollouts), "of its rollouts", "of its newest rollouts"),
        ]
    )
    console.print(Text(f"{visible_line(examined.name)}: looked at {looked}"), soft_wrap=True)
    if examined.unread is not None:
        console.print(Text(f"its rollouts were left out: {visible_line(examined.unread)}", "yellow"), soft_wrap=True)
    if not view.steps and not view.rollouts:
        console.print("there is no step of reinforcement learning yet, so nothing can be said")
        return
    for finding in examined.findings:
        console.print()
        console.print(finding_text(finding, lambda text: with_options(TrainConfig, text)), soft_wrap=True)
        if finding.rollouts:
            first = finding.rollouts[0]
            console.print(
                Text(f"see for example: agl rollouts show {visible_line(first)} --store {path}", "dim"), soft_wrap=True
            )
    console.print()
    if 0 < len(view.steps) < WINDOW:
        console.print(f"a rule sees best over {WINDOW} steps: look again when there are more", style="dim")
    verdict = "no other fault was found" if examined.findings else "no fault was found"
    rules = f"{verdict} (rules: {', '.join(examined.healthy)})"
    console.print(Text(rules, "dim"), soft_wrap=True)


def _checked(settings: DoctorSettings) -> int:
    from .speed_test import checkup

    commands: Mapping[str, type[Settings]] = {
        "serve": ServeSettings,
        "store": ServeStoreSettings,
    }
    ports = {name: int(kind.settings()["port"].default) for name, kind in commands.items()}
    found = checkup(ports, speed_test=settings.speed_test)
    show(settings, found, lambda console: show_checkup(console, found))
    return int(found["faults"])


def show_checkup(console: Console, found: Mapping[str, Any]) -> None:
    """Print the checks, the speed, and the settings that follow."""
    for title in ("installation", "hardware"):
        table = Table(title=title.capitalize(), show_header=False, box=None, title_justify="left", pad_edge=False)
        for check in found[title]:
            text = Text(visible_line(check["found"]))
            if check["advice"]:
                text.append(f"\n→ {visible_line(check['advice'])}", _COLOURS[check["state"]])
            table.add_row(Text(check["state"], _COLOURS[check["state"]]), check["name"], text)
        console.print(table)
        console.print()
    speed, recommended = found["speed"], found["recommendation"]
    shared = any(check["name"] == "Other work" and check["state"] != "ok" for check in found["hardware"])
    beside = ", beside the other work; look again when that has ended" if shared else ""
    if speed is not None:
        console.print(
            f"Speed of {speed['model']} ({speed['dtype']}, {counted(speed['threads'], 'thread')}): "
            f"{number(speed['sampled'])} tokens/s sampled, {number(speed['learned'])} learned",
            highlight=False,
            soft_wrap=True,
        )
        console.print(
            f"`make train`, or `mini-agentic-rl train`, takes about {number(round(recommended['train_minutes']))} "
            f"minutes here{beside}",
            highlight=False,
            soft_wrap=True,
        )
    for one in recommended["options"]:
        option = with_options(TrainConfig, f"`{one['setting']}={one['value']}`").strip("`")
        console.print(f"recommended: {option} ({one['why']})", highlight=False, soft_wrap=True, markup=False)
