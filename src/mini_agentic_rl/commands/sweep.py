"""`sweep`: train with several seeds and settings in turn, each in a run folder of its own, and print one table.

    OUTPUT_DIR/sweep.json              the settings that all runs share
    OUTPUT_DIR/results.json            the table, written again after each run
    OUTPUT_DIR/SETTING=VALUE,seed=0/   a run folder

Each run is a process of its own, so that none inherits memory, random numbers or a fault of the run before it. A sweep
that was stopped or killed continues with `resume`; finished runs stay as they are.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from pydantic import Field, ValidationError
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ..config import COMMAS
from ..errors import UserError
from ..files import make_private_folder, one_writer, read_json, write_json
from ..metrics import percent
from ..processes import start_child
from ..redaction import remember_secrets, without_secrets, without_secrets_within
from ..trainer import RunFolder, sweep_rows
from ..visible_text import visible_line
from .tables import show
from .train_config import TrainConfig, with_agent_defaults

_OWN: Final = ("seed", "output_dir", "resume", "overwrite", "json_output", "console")
_UNSAFE: Final = re.compile(r"[^\w.,=+-]+")


class SweepSettings(TrainConfig):
    """The settings of `sweep`: all that `train` has, several values of some, and several seeds."""

    defaults: ClassVar[Mapping[str, Any]] = {**TrainConfig.defaults, "run.output_dir": Path("outputs/sweep")}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {"Sweep": ("vary", "seeds"), **TrainConfig.panels}
    helps: ClassVar[Mapping[str, str]] = {
        **TrainConfig.helps,
        "loop.seed": "Seed of the runs where `seeds` names none.",
        "run.output_dir": "Folder of the sweep: a run folder for each run, and the table.",
        "run.resume": "Go on with the sweep in the output folder: finished runs stay, one that was stopped goes on "
        "from its last checkpoint, and seeds and values may be added.",
        "run.overwrite": "Replace the sweep in the output folder.",
    }

    vary: list[str] = Field(default=[])
    """A setting of `train` and its values, as learning_rate=5e-4,1e-3; several settings are combined with each other.
    Where a value has commas itself, | parts them: difficulty=1|1,2."""
    seeds: Annotated[list[int], COMMAS] = Field(default=[])
    """Seeds; every setting is run with each of them. Several with commas, as 0,1,2."""


@dataclass(frozen=True)
class SweptRun:
    """One run of a sweep."""

    name: str
    """Name of its folder."""
    varied: Mapping[str, str]
    """Settings that differ from the other runs', but for the seed."""
    seed: int
    config: TrainConfig


def sweep(settings: SweepSettings) -> None:
    """Train with several settings and seeds in turn, and show one table; what was stopped goes on with --resume."""
    result = sweep_job(settings)
    show(settings, result, lambda console: _show_sweep(console, result))


def swept_runs(settings: SweepSettings) -> list[SweptRun]:
    """Return the runs of a sweep in the order in which they are made: all settings with the first seed, then with the
    next, so that a sweep that is stopped early has something to compare.

    Raises:
        UserError: a setting cannot be varied, has no such value, or is named twice.
    """
    given = settings.model_dump(exclude_unset=True, exclude={"vary", "seeds"})
    base = with_agent_defaults(TrainConfig(**given))
    axes = _axes(settings.vary)
    runs = []
    for seed in dict.fromkeys(settings.seeds or [settings.loop.seed]):
        for values in itertools.product(*axes.values()):
            varied = dict(zip(axes, values, strict=True))
            name = ",".join([*(f"{key}={value}" for key, value in varied.items()), f"seed={seed}"])
            name = _UNSAFE.sub("-", name)
            own = {"output_dir": settings.run.output_dir / name, "seed": seed}
            try:
                config = base.changed(**{**varied, **own, "resume": True, "overwrite": False, "json_output": False})
            except ValidationError as error:
                problem = error.errors()[0]
                raise UserError(f"{varied}: {problem['msg']}", setting="vary") from None
            runs.append(SweptRun(name, varied, seed, config))
    if len({run.name for run in runs}) < len(runs):
        raise UserError("two runs would have one name: give each value once", setting="vary")
    return runs


def _axes(vary: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each setting that is varied."""
    axes: dict[str, list[str]] = {}
    for text in vary:
        name, equals, values = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        found = [value.strip() for value in values.split("|" if "|" in values else ",") if value.strip()]
        if not equals or not found:
            raise UserError(f"{text!r}: write a setting and its values, as learning_rate=5e-4,1e-3", setting="vary")
        if name in _OWN or name not in TrainConfig.settings():
            why = "give `seeds`" if name == "seed" else "it is no setting of `train` that runs can differ in"
            raise UserError(f"{name}: {why}", setting="vary")
        if name in axes:
            raise UserError(f"{name} is named twice: give all of its values at once", setting="vary")
        axes[name] = list(dict.fromkeys(found))
    return axes


logger = logging.getLogger(__name__)

SHARED: Final = "sweep.json"
RESULTS: Final = "results.json"

RunOne: TypeAlias = Callable[[SweptRun, Path], None]
"""Makes one run, whose settings are in a file, or raises a UserError that says why it failed."""


def sweep_job(settings: SweepSettings, run_one: RunOne | None = None) -> dict[str, Any]:
    """Make the runs that are not finished, and return the table.

    A run that fails is told and left out; the others are made.

    Args:
        run_one: makes a run; None trains in a process of its own.

    Returns:
        `runs` (name, settings, seed, folder, failed), and `rows`, see `sweep_rows`.

    Raises:
        UserError: the folder holds another sweep, a setting cannot work, or every run failed.
    """
    remember_secrets(settings.flat())
    runs = swept_runs(settings)
    folder = settings.run.output_dir
    failed: dict[str, str] = {}
    with one_writer(folder):
        _begin(folder, settings, runs)
        for number, run in enumerate(runs, 1):
            place = RunFolder(run.config.run.output_dir)
            if place.summary_path.exists():
                logger.info("run %d of %d is finished: %s", number, len(runs), run.name)
                continue
            logger.info("run %d of %d: %s", number, len(runs), run.name)
            with tempfile.TemporaryDirectory() as place_of_settings:  # with keys, which are written into no run folder
                file = Path(place_of_settings) / "settings.json"
                write_json(file, run.config.flat(), private=True)
                try:
                    (run_one or train_in_process)(run, file)
                except UserError as error:
                    failed[run.name] = without_secrets(error.text)
                    logger.error("run %d of %d failed: %s", number, len(runs), error.text)
            write_json(folder / RESULTS, _results(runs, failed), private=True)
        found = _results(runs, failed)
        write_json(folder / RESULTS, found, private=True)
    if len(failed) == len(runs):
        raise UserError(f"every run failed; the first because {next(iter(failed.values()))}")
    return found


def train_in_process(run: SweptRun, file: Path) -> None:
    """Train in a process of its own, whose messages go to standard error.

    It has a session of its own, so that Ctrl-C, which a terminal sends to all, reaches it once: through this process,
    which then waits for its checkpoint.

    Raises:
        UserError: it failed; it has said why.
        KeyboardInterrupt: this process was interrupted; the run has stopped after a checkpoint.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = start_child(
        [sys.executable, "-m", "mini_agentic_rl", run.config.command, "--config", str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    )
    try:
        status = process.wait()
    except BaseException:
        if os.name == "posix":  # Windows sends Ctrl-C to all processes of a console
            process.send_signal(signal.SIGINT)
        process.wait()
        raise
    if status != 0:
        raise UserError(f"its process ended with status {status}, and said why above")


def _begin(folder: Path, settings: SweepSettings, runs: Sequence[SweptRun]) -> None:
    """Make the folder ready.

    Raises:
        UserError: it holds another sweep, or something else.
    """
    shared = _shared(settings)
    file = folder / SHARED
    try:
        before = read_json(file)
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}): choose another folder", setting="output_dir") from error
    if settings.run.resume and settings.run.overwrite:
        raise UserError("`resume` and `overwrite` contradict each other: give one of them")
    if before and settings.run.overwrite:
        for name in before.get("runs", []):
            _remove_run(folder, str(name))
        file.unlink()
        before = {}
    if before and not settings.run.resume:
        raise UserError(
            f"{folder} holds a sweep: give `resume` to go on with it, or `overwrite` to replace it",
            setting="output_dir",
        )
    was = before.get("settings", {})
    changed = sorted(name for name in {*shared, *was} if shared.get(name) != was.get(name))
    if before and changed:
        raise UserError(
            f"the sweep in {folder} was started with another {', '.join(changed)}: give the same settings, or choose "
            "another folder",
            setting="resume",
        )
    if not before:
        taken = [run.name for run in runs if run.config.run.output_dir.exists()]
        if taken:
            raise UserError(f"{folder / taken[0]} is there already: choose another folder", setting="output_dir")
    make_private_folder(folder)
    names = list(dict.fromkeys([*before.get("runs", []), *(run.name for run in runs)]))
    write_json(file, {"settings": shared, "runs": names}, private=True)


def _remove_run(folder: Path, name: str) -> None:
    """Remove what a sweep wrote of a run, and nothing beside it."""
    if Path(name).name != name:
        return
    place = RunFolder(folder / name)
    if place.path.is_symlink():
        raise UserError(f"{place.path} is a link, which no sweep makes: remove the link", setting="output_dir")
    place.delete()
    with contextlib.suppress(OSError):  # it is not there, or holds what no run wrote
        place.path.rmdir()


def _shared(settings: SweepSettings) -> dict[str, Any]:
    """Return the settings that all runs share, as JSON values."""
    axes = {text.partition("=")[0].strip().removeprefix("--").replace("-", "_") for text in settings.vary}
    left_out = {"vary", "seeds", "seed", "output_dir", "resume", "overwrite", "json_output", "console"}
    left_out |= {
        one.name for one in settings.settings().values() if one.panel == "Runners" or one.path[0] == "ray"
    }  # where, and not what
    found = {name: value for name, value in settings.flat().items() if name not in left_out | axes}
    shared: dict[str, Any] = json.loads(json.dumps(without_secrets_within(found)))
    return shared


def _results(runs: Sequence[SweptRun], failed: Mapping[str, str]) -> dict[str, Any]:
    """Return the table of what is finished so far."""
    described, finished = [], []
    for run in runs:
        place = RunFolder(run.config.run.output_dir)
        summary = place.read_summary()
        described.append(
            {
                "name": run.name,
                "settings": dict(run.varied),
                "seed": run.seed,
                "folder": str(place.path),
                "finished": bool(summary),
                "failed": failed.get(run.name),
            }
        )
        if summary:
            finished.append((run.varied, run.seed, summary))
    return {"runs": described, "rows": sweep_rows(finished)}


def _show_sweep(console: Console, found: Mapping[str, Any]) -> None:
    """Print the table of a sweep, and the runs that failed."""
    setting_column = Column("setting", overflow="fold")  # cut off, two settings could look alike
    table = Table(setting_column, "seeds", "measurement", "mean", "95 % interval", "to the first", title="Sweep")
    for row in found["rows"]:
        setting = ", ".join(f"{name}={value}" for name, value in row["settings"].items()) or "as given"
        begins = (Text(visible_line(setting)), ", ".join(map(str, row["seeds"])))
        compared = next((name for name in reversed(row["measurements"]) if not name.endswith(", lenient")), None)
        for name, measured in row["measurements"].items():
            interval = f"{100 * measured['low']:.1f} – {percent(measured['high'])}"
            difference = _difference(row["against_first"]) if name == compared else ""
            table.add_row(*begins, Text(visible_line(name)), percent(measured["mean"]), interval, difference)
            begins = (Text(""), "")
        table.add_section()
    console.print(table)
    for run in found["runs"]:
        if run["failed"] is not None:
            console.print(f"{run['name']} failed: {run['failed']}", style="yellow", markup=False, soft_wrap=True)


def _difference(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    interval = "" if found["low"] is None else f" ({_points(found['low'])} – {_points(found['high'])})"
    return f"{_points(found['difference'])}{interval}"


def _points(share: float) -> str:
    """Return a difference of shares as percentage points with their sign."""
    return f"{round(100 * share, 1) + 0.0:+.1f}"  # the sum makes 0.0 of -0.0
