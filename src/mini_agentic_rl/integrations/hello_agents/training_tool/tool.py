"""`RLTrainingTool`: an agent trains a model, looks at data, tries a reward and measures, by one call with one answer.

    RLTrainingTool().run({"action": "train", "algorithm": "sft", "model_name": "embedded", "max_samples": 100})

Answers are JSON text with `success` and `status`; what went wrong comes in `message`, never as an exception. `train`
returns when the training has ended. What takes long is begun by `start`, watched by `status` and `logs`, and ended by
`stop`.
"""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from ....errors import UserError
from ....files import make_private_file, one_writer
from ....metrics import read_metrics
from ....processes import dumps
from .actions import DataActions
from .parameters import (
    PARAMETERS,
    AllowedPaths,
    LogsParameters,
    StopParameters,
    ToolError,
    ToolParameter,
    TrainingParameters,
    TrainParameters,
    describe,
    json_schema,
    read_action,
    read_parameters,
    told,
)
from .training import (
    LOG_FILE,
    STATE_FILE,
    Job,
    TrainingState,
    format_of,
    interrupt,
    read_state,
    run_recorded,
    running,
    start_worker,
)

# The actions on trainings: `train`, `start`, `status`, `stop`, `logs`.


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


logger = logging.getLogger(__name__)


class RLTrainingTool:
    """Trains models for an agent.

    It is called with a mapping or with the JSON text of one. As an OpenAI tool: offer `openai_tool`, answer a call by
    `run(call.function.arguments)`. As an MCP tool: `python -m mini_agentic_rl.rl_training_tool.mcp_server`. For
    openai-agents: `openai_agents_tool(tool)` of `rl_training_tool.openai_agents`.

    What an agent can do with it is bounded: output folders are inside `root`, files are read there or in
    `data_folders`, local models are loaded from there or from `model_folders`, no name of a data set runs code, every
    number has a bound, and at most `max_trainings` run at once.

    Args:
        root: folder for all output; None takes the working directory.
        data_folders: further folders whose files may be read as data sets.
        model_folders: further folders whose models may be loaded.
        max_trainings: trainings at the same time, those of other tools over the same root included.

    Raises:
        UserError: `max_trainings` is below 1.
    """

    name: ClassVar[str] = "rl_training"
    description: ClassVar[str] = (
        "Train language models: supervised fine-tuning, preference training, reward models, and reinforcement learning "
        "(GRPO and its variants, PPO). Also: look at a data set, try a reward, measure a model."
    )

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        data_folders: Sequence[str | Path] = (),
        model_folders: Sequence[str | Path] = (),
        max_trainings: int = 1,
    ) -> None:
        if max_trainings < 1:
            raise UserError(f"max_trainings must be 1 or more, not {max_trainings}")
        self.paths = AllowedPaths(Path.cwd() if root is None else root, data_folders, model_folders)
        self._data = DataActions(self.paths)
        self._trainings = Trainings(self.paths, self._data, max_trainings)

    def run(self, parameters: Mapping[str, Any] | str | None = None) -> str:
        """Do what `action` says (`train` where there is none) and answer in JSON."""
        action = "train"
        try:
            given = _read(parameters)
            action = read_action(given)
            answer = {"success": True, "status": "success", "action": action, **self._do(action, given)}
        except Exception as error:  # an agent can act on an answer, and not on a traceback
            if not isinstance(error, UserError | ImportError):
                logger.exception("%s failed", action)
            answer = {"success": False, "status": "error", "action": action, "message": told(error)}
        return json.dumps(answer, ensure_ascii=False, indent=2, default=str)

    def __call__(self, **parameters: Any) -> str:
        """Call `run` with the parameters by name."""
        return self.run(parameters)

    def get_parameters(self) -> list[ToolParameter]:
        """Return every parameter with its type, description and default."""
        return describe()

    @property
    def openai_tool(self) -> dict[str, Any]:
        """The tool as an OpenAI function."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": json_schema()},
        }

    def register_dataset(self, name: str, dataset: Sequence[Mapping[str, Any]]) -> None:
        """Let `dataset` and `custom_dataset` name these rows.

        Raises:
            UserError: the name is empty, or there are no rows.
        """
        self._data.register_dataset(name, dataset)

    def register_reward_function(self, name: str, reward_fn: Callable[..., Any]) -> None:
        """Let `custom_reward` name this function.

        Raises:
            UserError: the name is empty, or it cannot be called.
        """
        self._data.register_reward(name, reward_fn)

    def _do(self, action: str, given: Mapping[str, Any]) -> Answer:
        actions: Mapping[str, Callable[[Any], Answer]] = {
            "train": self._trainings.train,
            "start": self._trainings.start,
            "status": self._trainings.status,
            "stop": self._trainings.stop,
            "logs": self._trainings.logs,
            "load_dataset": self._data.load_dataset,
            "create_reward": self._data.create_reward,
            "evaluate": self._data.evaluate,
        }
        return actions[action](read_parameters(PARAMETERS[action], action, given))


def _read(parameters: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    if isinstance(parameters, str):
        try:
            parameters = json.loads(parameters)
        except ValueError as error:
            raise ToolError(f"the parameters are not valid JSON ({error}); give a JSON object") from error
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping):
        raise ToolError(f"the parameters are a {type(parameters).__name__}; give a JSON object")
    return parameters
