"""`sweep`: seeds and settings in turn, each a run folder of `train`, and one table of what they came to.

    OUTPUT_DIR/sweep.json              the settings that all runs share
    OUTPUT_DIR/results.json            the table, written again after each run
    OUTPUT_DIR/SETTING=VALUE,seed=0/   a run folder

Each run is a process of its own: none inherits memory, random numbers or a fault of the one before. A sweep that was
stopped or killed goes on with `resume`: runs that are finished stay as they are.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from ..errors import UserError
from ..files import make_private_folder, one_writer, read_json, write_json
from ..processes import start_child
from ..redaction import remember_secrets, without_secrets, without_secrets_within
from ..trainer import RunFolder, sweep_rows
from .sweep_settings import SweepSettings, SweptRun, swept_runs

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
    left_out |= {one.name for one in settings.settings().values() if one.panel == "Runners"}  # where, and not what
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
