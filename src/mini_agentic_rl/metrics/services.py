"""Loggers that hand the numbers to TensorBoard, W&B, SwanLab, MLflow or Trackio.

Their packages are no dependencies of ours: each is imported when its logger is made, and one that is missing, or that
cannot be loaded beside the others, is named together with what to do. W&B and SwanLab are online where a key of theirs
is found, else offline in the run folder; their own environment variables decide before that. The others write into the
run folder, or where their environment variables say.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import json
import netrc
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ..errors import MissingPackageError
from .base import MetricsLogger

_PROJECT = "mini-agentic-rl"
MODULES: Final = {
    "tensorboard": "tensorboard.summary",
    "wandb": "wandb",
    "swanlab": "swanlab",
    "mlflow": "mlflow.tracking",
    "trackio": "trackio",
}
"""Module that each logger needs."""
_LONGEST_PARAMETER = 6000
_PARAMETERS_AT_ONCE = 100
_STEP = "step"


class _Service(MetricsLogger, ABC):
    """A logger over an open handle of a foreign package; `_end` is called once, however often it is closed.

    Args:
        run_dir: existing folder of the run.
        hyperparameters: the configuration of the run, as JSON values.

    Raises:
        MissingPackageError: the package is not installed; the message names the extra that brings it.
        ImportError: the package cannot be loaded; the message says what to do.
    """

    _open = True
    _last_step = 0

    def __init__(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None:
        with _only_results_on_stdout():
            self._begin(run_dir, hyperparameters)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._open and rows:
            columns = list(rows[0])
            with _only_results_on_stdout():
                self._add_table(name, columns, [[_cell(row.get(column)) for column in columns] for row in rows])

    def artifact(self, name: str, files: Sequence[Path]) -> None:
        if self._open and files:
            with _only_results_on_stdout():
                self._add_artifact(name, files)

    def close(self) -> None:
        if self._open:
            self._open = False
            with _only_results_on_stdout():
                self._end()

    @abstractmethod
    def _begin(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def _add_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None: ...

    @abstractmethod
    def _add_artifact(self, name: str, files: Sequence[Path]) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...


class _RunService(_Service):
    """A service whose handle is a run that takes all numbers of a step at once."""

    _run: Any

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._last_step = step
        self._run.log({name: float(value) for name, value in metrics.items()}, step=step)

    def _end(self) -> None:
        self._run.finish()


class TensorBoardLogger(_Service):
    """Event files under `run_dir/tensorboard`; the configuration is in its tab "HParams", tables are in "Text".

    TensorBoard keeps no files: of an artifact it tells where it is.
    """

    def _begin(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None:
        self._folder = str(run_dir / "tensorboard")
        if hyperparameters:
            _write_hyperparameters(self._folder, run_dir.name, hyperparameters)
        self._writer = load("tensorboard").Writer(self._folder)

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)
        self._last_step = step
        self._writer.flush()

    def _add_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        lines = [columns, ["---"] * len(columns), *rows]
        table = "\n".join("| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines)
        self._add_text(name, table)

    def _add_artifact(self, name: str, files: Sequence[Path]) -> None:
        lines = [f"- `{file.resolve()}` ({file.stat().st_size:,} bytes)" for file in files]
        self._add_text(f"artifacts/{name}", "\n".join(lines))

    def _add_text(self, name: str, text: str) -> None:
        text_pb = importlib.import_module("tensorboard.plugins.text.summary_v2").text_pb
        _write_summary(self._folder, ".text", text_pb(name, text), step=self._last_step)

    def _end(self) -> None:
        self._writer.close()


class WandbLogger(_RunService):
    """Weights & Biases: online with a key (`WANDB_API_KEY`, or `wandb login`), else offline under `run_dir/wandb`.

    `WANDB_MODE` decides before that; `WANDB_PROJECT` names the project.
    """

    def _begin(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None:
        self._run = load("wandb").init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=run_dir.name,
            dir=str(run_dir),
            mode=os.environ.get("WANDB_MODE") or ("online" if _has_wandb_key() else "offline"),
            config=dict(hyperparameters),
        )
        self._run.define_metric("*", step_metric=_STEP)  # its own count of rows must not decide what is drawn where

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._last_step = step
        self._run.log({_STEP: step, **{name: float(value) for name, value in metrics.items()}})

    def _add_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        table = load("wandb").Table(columns=columns, data=rows, allow_mixed_types=True)
        self._run.log({_STEP: self._last_step, name: table})

    def _add_artifact(self, name: str, files: Sequence[Path]) -> None:
        made = load("wandb").Artifact(_artifact_name(self._run.id, name), type="model")
        for file in files:
            made.add_file(str(file), name=file.name)
        self._run.log_artifact(made)


class SwanLabLogger(_RunService):
    """SwanLab: online with a key (`SWANLAB_API_KEY`, or `swanlab login`), else offline under `run_dir/swanlab`.

    `SWANLAB_MODE` decides before that.
    """

    def _begin(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None:
        self._run = load("swanlab").init(
            project=_PROJECT,
            experiment_name=run_dir.name,
            logdir=str(run_dir / "swanlab"),
            mode=os.environ.get("SWANLAB_MODE") or ("online" if _has_swanlab_key() else "offline"),
            config=dict(hyperparameters),
        )

    def _add_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        chart = importlib.import_module("swanlab").echarts.Table()
        self._run.log({name: chart.add(columns, rows)}, step=self._last_step)

    def _add_artifact(self, name: str, files: Sequence[Path]) -> None:
        for file in files:
            self._run.save(glob.escape(str(file)), base_path=str(file.parent.parent), policy="now")


class MlflowLogger(_Service):
    """MLflow, in the SQLite file `run_dir/mlflow.db` unless `MLFLOW_TRACKING_URI` is set.

    `MLFLOW_EXPERIMENT_NAME` names the experiment.
    """

    def _begin(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None:
        tracking = load("mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run_dir / 'mlflow.db').resolve()}"
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _PROJECT
        self._client = tracking.MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(name)
        own = None if os.environ.get("MLFLOW_TRACKING_URI") else (run_dir / "mlartifacts").resolve().as_uri()
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(name, artifact_location=own)
        )
        self._run_id: str = self._client.create_run(experiment_id, run_name=run_dir.name).info.run_id
        parameter = importlib.import_module("mlflow.entities").Param
        rows = [parameter(name, _as_text(value)[:_LONGEST_PARAMETER]) for name, value in hyperparameters.items()]
        for start in range(0, len(rows), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run_id, params=rows[start : start + _PARAMETERS_AT_ONCE])

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._run_id, name, float(value), step=step)

    def _add_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        by_column = {column: [row[number] for row in rows] for number, column in enumerate(columns)}
        self._client.log_table(self._run_id, data=by_column, artifact_file=f"{name}.json")

    def _add_artifact(self, name: str, files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self._run_id, str(file), artifact_path=name)

    def _end(self) -> None:
        self._client.set_terminated(self._run_id)


class TrackioLogger(_RunService):
    """Trackio, in its own local folder (`TRACKIO_DIR`), or in the Space that `TRACKIO_SPACE_ID` names."""

    def _begin(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None:
        self._run = load("trackio").init(project=_PROJECT, name=run_dir.name, embed=False, config=dict(hyperparameters))

    def _add_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        self._run.log({name: load("trackio").Table(columns=columns, data=rows)}, step=self._last_step)

    def _add_artifact(self, name: str, files: Sequence[Path]) -> None:
        made = load("trackio").Artifact(_artifact_name(self._run.name, name), type="model")
        for file in files:
            made.add_file(str(file), name=file.name)
        self._run.log_artifact(made)


def _write_hyperparameters(folder: str, run: str, hyperparameters: Mapping[str, Any]) -> None:
    """Write an event file with the configuration; a run that goes on writes the same session again."""
    hparams = importlib.import_module("tensorboard.plugins.hparams.summary_v2")
    rows = {
        name: value if isinstance(value, bool | int | float) else _as_text(value)
        for name, value in _flat(hyperparameters)
    }
    _write_summary(folder, ".hparams", hparams.hparams_pb(rows, trial_id=run))


def _write_summary(folder: str, suffix: str, summary: Any, step: int = 0) -> None:
    """Write an event file of one summary."""
    proto = importlib.import_module("tensorboard.compat.proto")
    events = importlib.import_module("tensorboard.summary.writer.event_file_writer")
    ours = proto.summary_pb2.Summary.FromString(summary.SerializeToString())
    writer = events.EventFileWriter(folder, filename_suffix=suffix)
    writer.add_event(proto.event_pb2.Event(wall_time=time.time(), step=step, summary=ours))
    writer.close()


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings under names with dots, as other services show them."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def load(name: str) -> Any:
    """Import the package of a logger.

    Raises:
        ImportError: it is not installed, or does not go with another package that is.
    """
    try:
        return importlib.import_module(MODULES[name])
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != name:
            raise ImportError(f"the {name} logger cannot be loaded: {error}; {_LEAVE_OUT}") from error
        raise MissingPackageError(
            f"the {name} logger", name, extra="loggers", setting="loggers", hint=f", or {_LEAVE_OUT}"
        ) from error
    except Exception as error:  # of protobuf, where what one package was made with is not what another has installed
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ImportError(
            f"the {name} logger cannot be loaded beside the other packages here ({first}): "
            f"pip install --upgrade {name} protobuf, or {_LEAVE_OUT}"
        ) from error


_LEAVE_OUT = "leave it out of `loggers`"


@contextlib.contextmanager
def _only_results_on_stdout() -> Iterator[None]:
    """Send what a package prints of itself to standard error: standard output is for results."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    named = os.environ.get("NETRC")
    files = [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]
    return any(host in _hosts(file) for file in files)


def _has_swanlab_key() -> bool:
    files = [folder / ".swanlab" / ".netrc" for folder in (Path.cwd(), Path.home())]
    return bool(os.environ.get("SWANLAB_API_KEY")) or any(_hosts(file) for file in files)


def _hosts(file: Path) -> set[str]:
    """Return the hosts for which a file of logins has one; none where it cannot be read."""
    try:
        return set(netrc.netrc(file).hosts)
    except (OSError, netrc.NetrcParseError):
        return set()


def _artifact_name(run: str, name: str) -> str:
    """Return a name of the characters that the services take."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{run}-{name}")


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, str | bool | int | float) else _as_text(value)


def _markdown_cell(value: Any) -> str:
    """Return a cell whose text stands as it is: neither a line break nor a bar ends it."""
    text = "" if value is None else str(value)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("\n", "<br>")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
