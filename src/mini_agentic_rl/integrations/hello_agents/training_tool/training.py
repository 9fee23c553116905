"""A training as a job: what to train on, by what, with which parameters. Runs here, or pickled, in its own process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import psutil
from pydantic import ValidationError

from ....config import Settings
from ....datasets import divide_examples, load_examples
from ....errors import UserError
from ....files import make_private_folder, one_writer, write_json
from .. import TrainingConfig
from .parameters import Supervised, TrainParameters, told

SUPERVISED: tuple[str, ...] = get_args(Supervised)
REINFORCEMENT_RATE = 5e-4
"""Learning rate of reinforcement learning, unless another is asked for."""
_EVAL_FRACTION = 0.1

STATE_FILE = "training.json"
LOG_FILE = "training.log"

Row = Mapping[str, Any]
Phase = Literal["running", "finished", "stopped", "failed"]


class TrainingState(Settings):
    """State of a training, kept as `training.json` in its output folder by the process that trains."""

    state: Phase
    """`stopped` was ended by somebody, with a checkpoint where it had come to train; `failed` ended by itself."""
    algorithm: str
    """Name of the algorithm."""
    parameters: dict[str, Any]
    """Parameters that it was started with."""
    started: float
    """Seconds since the epoch."""
    ended: float | None = None
    """Seconds since the epoch; None while it runs."""
    message: str | None = None
    """Reason of its failure, or what to do next."""
    result: dict[str, Any] | None = None
    """Summary of the finished training."""

    def ended_as(
        self, state: Phase, *, message: str | None = None, result: dict[str, Any] | None = None
    ) -> TrainingState:
        """Return the same training, ended now."""
        return self.model_copy(update={"state": state, "ended": time.time(), "message": message, "result": result})

    def write(self, folder: Path) -> None:
        """Write it into the output folder.

        Raises:
            OSError: it cannot be written.
        """
        make_private_folder(folder)
        write_json(folder / STATE_FILE, json.loads(self.model_dump_json()), private=True)


def read_state(folder: Path) -> TrainingState | None:
    """Return the training in an output folder; None where there is none."""
    try:
        return TrainingState.model_validate_json((folder / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


@dataclass(frozen=True)
class Job:
    """All that a training needs."""

    parameters: TrainParameters
    model: str
    """The model; a local one by its whole path."""
    dataset: str
    """Name of the rows."""
    rows: Sequence[Row] | None
    """The rows; None loads them by the name of the data set, in the process that trains."""
    reward_fn: Any
    """The reward function of reinforcement learning."""

    def state(self) -> TrainingState:
        """The training as it begins now."""
        given = self.parameters.model_dump(exclude={"custom_dataset", "custom_reward"}, exclude_unset=True)
        return TrainingState(
            state="running", algorithm=self.parameters.algorithm, parameters=given, started=time.time()
        )


def run_recorded(job: Job, folder: Path) -> dict[str, Any]:
    """`run_job`, with the state of the training kept in the output folder.

    Raises:
        UserError: a parameter cannot work, or the folder holds something else.
        KeyboardInterrupt: it was stopped; a checkpoint is written.
    """
    with one_writer(folder):
        state = job.state()
        state.write(folder)
        try:
            result = run_job(job, folder)
        except KeyboardInterrupt:
            state.ended_as("stopped", message="give resume=true to go on from its last checkpoint").write(folder)
            raise
        except Exception as error:
            state.ended_as("failed", message=told(error)).write(folder)
            raise
        state.ended_as("finished", result=result).write(folder)
    return result


def run_job(job: Job, folder: Path) -> dict[str, Any]:
    """Train into `folder`, and return what came of it.

    Raises:
        UserError: a parameter cannot work, or the folder holds something else.
        KeyboardInterrupt: it was stopped; a checkpoint is written.
    """
    parameters = job.parameters
    rows = list(_loaded(job) if job.rows is None else job.rows)
    if not rows:
        raise UserError("dataset has no rows to train on")
    supervised = parameters.algorithm in SUPERVISED
    summary = (_supervise if supervised else _reinforce)(job, folder, rows)
    return {
        "algorithm": parameters.algorithm,
        "model": parameters.model_name,
        "output_dir": str(folder),
        "dataset": job.dataset,
        "dataset_size": len(rows),
        "num_epochs": parameters.num_epochs,
        "summary": summary,
    }


def format_of(algorithm: str) -> str:
    """The form of rows that an algorithm learns from."""
    from .. import FORMATS

    return FORMATS.get(algorithm, "rl")


def _loaded(job: Job) -> Sequence[Row]:
    """Return the rows of the job's data set.

    Raises:
        DatasetError: it cannot be had.
    """
    given = job.parameters
    form: Any = format_of(given.algorithm)
    return load_examples(job.dataset, form, split=given.split, max_samples=given.max_samples, seed=given.seed)


def config_of(job: Job, folder: Path, learning_rate: float) -> TrainingConfig:
    """The parameters as a `TrainingConfig`."""
    given = job.parameters
    several = given.samples_per_prompt if "samples_per_prompt" in given.model_fields_set else None
    values: dict[str, Any] = {
        **given.model_dump(include=set(TrainingConfig.model_fields)),  # what both call by the same name
        "model_name": job.model,
        "output_dir": str(folder),
        "num_train_epochs": given.num_epochs,
        "per_device_train_batch_size": given.batch_size,
        "learning_rate": given.learning_rate or learning_rate,
        "logging_steps": 1,
        "lora_dropout": 0.0,
        "samples_per_prompt": several,
    }
    return TrainingConfig(**values)


def _supervise(job: Job, folder: Path, rows: Sequence[Row]) -> dict[str, Any]:
    from .. import SUPERVISED_SETTINGS, supervise

    given = job.parameters
    usual = SUPERVISED_SETTINGS[given.algorithm].settings()["learning_rate"].default
    return supervise(
        given.algorithm,
        config_of(job, folder, float(usual)),
        rows,
        folder,
        resume=given.resume,
        overwrite=given.overwrite,
    )


def _reinforce(job: Job, folder: Path, rows: Sequence[Row]) -> dict[str, Any]:
    from .. import reinforce

    given = job.parameters
    train: Sequence[Any] = rows
    held_out: Sequence[Any] = ()
    if given.eval_samples and len(rows) > 1:
        train, held_out = divide_examples(list(rows), _EVAL_FRACTION, given.seed)
    return reinforce(
        given.algorithm,
        config_of(job, folder, REINFORCEMENT_RATE),
        train,
        job.reward_fn,
        folder,
        eval_rows=held_out[: given.eval_samples],
        resume=given.resume,
        overwrite=given.overwrite,
    )


# Trainings in processes of their own: started, found again, and ended.
#
# A training is known by its process's command line, which names its output folder. So any tool over the same root finds
# it, also one that was started later, and nothing is left behind by a process that was killed.


WORKER = "mini_agentic_rl.integrations.hello_agents.training_tool.worker"
_NAMED_SECONDS: Final = 5.0


def start_worker(folder: Path, job: bytes, log: Path) -> subprocess.Popen[bytes]:
    """Start the process that trains into `folder`; it reads `job` and writes its output to `log`.

    It has a session of its own: Ctrl-C in the terminal of the agent, or the agent's end, does not end it.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", WORKER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    assert process.stdin is not None
    try:
        with process.stdin as pipe:
            pipe.write(job)
    except BrokenPipeError:  # it has ended already: its log says why
        pass
    _wait_for_command_line(process.pid)
    return process


def _wait_for_command_line(pid: int) -> None:
    """Wait until the system shows by what a training is known: for a moment after its start it may show nothing, and
    whoever looked then would take the training for failed."""
    end = time.monotonic() + _NAMED_SECONDS
    with contextlib.suppress(psutil.Error):  # it has ended already
        while WORKER not in psutil.Process(pid).cmdline() and time.monotonic() < end:
            time.sleep(0.005)


def running(root: Path) -> dict[Path, psutil.Process]:
    """Return the processes that train into folders inside `root`, by folder."""
    found = {}
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if WORKER in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            folder = Path(words[-1])
            if folder.is_relative_to(root):
                found[folder] = process
    return found


def interrupt(process: psutil.Process, wait_seconds: float) -> bool:
    """Send SIGINT, and wait; return True if it has ended within so many seconds. Windows, without SIGINT, ends it."""
    try:
        if os.name == "posix":
            process.send_signal(signal.SIGINT)
        else:
            process.terminate()
        process.wait(wait_seconds)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True
