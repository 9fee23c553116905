"""The actions on trainings: `train`, `start`, `status`, `stop`, `logs`."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ....files import make_private_file, one_writer
from ....metrics import read_metrics
from ....runner.processes import dumps
from .actions import DataActions
from .parameters import LogsParameters, StopParameters, ToolError, TrainingParameters, TrainParameters
from .paths import AllowedPaths
from .processes import interrupt, running, start_worker
from .training import LOG_FILE, STATE_FILE, Job, TrainingState, format_of, read_state, run_recorded

_TAIL_BYTES = 1 << 18
"""Bytes at the end of a log that are looked at."""
_LAST_LINES = 8
"""Lines of the log that explain a training which ended without a word."""

Answer = dict[str, Any]


class Trainings:
    """Trainings inside one root.

    Args:
        paths: where they write.
        data: where their rows and rewards come from.
        most: how many may run at once.
    """

    def __init__(self, paths: AllowedPaths, data: DataActions, most: int) -> None:
        self._paths = paths
        self._data = data
        self._most = most
        self._lock = threading.Lock()
        self._here: set[Path] = set()
        """Folders of those that run in this process."""
        self._started: dict[Path, subprocess.Popen[bytes]] = {}
        """Those that were started by this tool, by folder."""

    def train(self, parameters: TrainParameters) -> Answer:
        """Train in this process, to the end."""
        folder = self._paths.output(parameters.output_dir)
        job = self._job(parameters)
        _refuse_finished(folder, parameters)
        _refuse_foreign(folder, parameters)
        with self._place(folder):
            return run_recorded(job, folder)

    def start(self, parameters: TrainParameters) -> Answer:
        """Train in a process of its own."""
        folder = self._paths.output(parameters.output_dir)
        job = self._job(parameters)
        pickled = dumps(
            job,
            "the training",
            "Give a data set by name, and a reward function that holds no open files or connections; or use train",
        )
        _refuse_finished(folder, parameters)
        _refuse_foreign(folder, parameters)
        with self._lock:
            self._check_room(folder)
            with one_writer(folder):  # a run of a command may be writing there
                job.state().write(folder)
                log = folder / LOG_FILE
                make_private_file(log)
                log.write_bytes(b"")
            process = start_worker(folder, pickled, log)
            self._started[folder] = process
        return {
            "state": "running",
            "output_dir": str(folder),
            "algorithm": parameters.algorithm,
            "process": process.pid,
            "message": "it trains in a process of its own: ask for status and logs, end it with stop",
        }

    def status(self, parameters: TrainingParameters) -> Answer:
        """Report the state of one training, or of all that run and all that this tool has started."""
        if parameters.output_dir is not None:
            return self._status(self._paths.output(parameters.output_dir))
        folders = {*running(self._paths.root), *self._started, *self._here}
        return {"trainings": [self._status(folder) for folder in sorted(folders)], "max_trainings": self._most}

    def stop(self, parameters: StopParameters) -> Answer:
        """End a training as Ctrl-C would: with a checkpoint."""
        folder = self._which(parameters)
        process = running(self._paths.root).get(folder)
        if folder in self._here:
            raise ToolError(
                f"output_dir={str(folder)!r} is trained by the action train, which goes on to its end; what start has "
                "started can be stopped"
            )
        if process is None:
            found = self._status(folder)
            return {**found, "message": f"it does not run: its state is {found['state']}"}
        ended = interrupt(process, parameters.wait_seconds)
        state = read_state(folder)
        if ended and state is not None and state.state == "running":  # before it could write
            state.ended_as("stopped", message="it had not begun to train").write(folder)
        found = self._status(folder)
        if not ended:
            found |= {"state": "stopping", "message": "it is writing its checkpoint: ask for status in a while"}
        return found

    def logs(self, parameters: LogsParameters) -> Answer:
        """Return the last lines that a training has written."""
        folder = self._which(parameters)
        lines = _tail(folder / LOG_FILE, parameters.lines)
        return {"output_dir": str(folder), "state": self._status(folder)["state"], "lines": lines}

    def _job(self, parameters: TrainParameters) -> Job:
        form = format_of(parameters.algorithm)
        name, rows = self._data.find(parameters, form)
        return Job(
            parameters=parameters.model_copy(update={"custom_dataset": None, "custom_reward": None}),
            model=self._paths.model(parameters.model_name),
            dataset=name,
            rows=rows,
            reward_fn=self._data.reward(parameters) if form == "rl" else None,
        )

    @contextmanager
    def _place(self, folder: Path) -> Iterator[None]:
        """Within, a training in this process counts."""
        with self._lock:
            self._check_room(folder)
            self._here.add(folder)
        try:
            yield
        finally:
            with self._lock:
                self._here.discard(folder)

    def _check_room(self, folder: Path) -> None:
        for process in self._started.values():
            process.poll()  # one that has ended does not stay as a zombie
        busy = {*running(self._paths.root), *self._here}
        if folder in busy:
            raise ToolError(
                f"output_dir={str(folder)!r}: a training writes there now; choose another folder, or stop it"
            )
        if len(busy) >= self._most:
            shown = ", ".join(map(str, sorted(busy)))
            raise ToolError(f"at most {self._most} trainings run at once, and these do: {shown}; stop one, or wait")

    def _which(self, parameters: TrainingParameters) -> Path:
        if parameters.output_dir is not None:
            return self._paths.output(parameters.output_dir)
        folders = list(running(self._paths.root)) or list(self._started)[-1:]
        if len(folders) != 1:
            shown = ", ".join(map(str, sorted(folders))) or "none"
            raise ToolError(f"output_dir is needed to say which training is meant; those that run: {shown}")
        return folders[0]

    def _status(self, folder: Path) -> Answer:
        runs = folder in running(self._paths.root)
        state = read_state(folder)
        found: Answer = {"output_dir": str(folder)}
        if folder in self._here:
            found["state"] = "running"
        elif state is None:
            raise ToolError(f"output_dir={str(folder)!r}: no training was started there")
        elif state.state == "running" and not runs:
            found |= _about(state, runs) | {"state": "failed", "message": _last_words(folder)}
        else:
            found |= _about(state, runs)
        rows = read_metrics(folder / "metrics.jsonl")
        if rows:
            found["last_metrics"] = rows[-1]
        return found


def _refuse_finished(folder: Path, parameters: TrainParameters) -> None:
    """Before the state of the finished training is written over."""
    if (folder / "summary.json").is_file() and not (parameters.resume or parameters.overwrite):
        raise ToolError(
            f"output_dir={parameters.output_dir!r} holds a finished training: choose another folder, or give "
            "overwrite=true to replace it"
        )


def _refuse_foreign(folder: Path, parameters: TrainParameters) -> None:
    """Before files that no training wrote are written over, with `overwrite` or without."""
    for name in (STATE_FILE, LOG_FILE):
        if (folder / name).exists() and read_state(folder) is None:
            raise ToolError(
                f"output_dir={parameters.output_dir!r} holds a {name} that no training wrote: choose another folder"
            )


def _about(state: TrainingState, runs: bool) -> Answer:
    end = time.time() if runs or state.ended is None else state.ended
    found: Answer = {
        "state": state.state,
        "algorithm": state.algorithm,
        "parameters": state.parameters,
        "seconds": round(end - state.started, 1),
    }
    optional = {"message": state.message, "result": state.result}
    return found | {name: value for name, value in optional.items() if value is not None}


def _last_words(folder: Path) -> str:
    """Return the reason why a training ended without a result."""
    lines = _tail(folder / LOG_FILE, _LAST_LINES)
    return "its process ended without a result (killed, or out of memory); its last lines: " + " | ".join(lines)


def _tail(path: Path, count: int) -> list[str]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    return text.splitlines()[-count:]
