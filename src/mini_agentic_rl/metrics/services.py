"""Loggers that hand the numbers to TensorBoard, W&B, SwanLab, MLflow or Trackio.

Their packages are no dependencies of ours: each is imported when its logger is made, and a missing one is named
together with the extra that brings it. None of them is asked to reach a network: W&B and SwanLab start in their
offline mode unless their own environment variable says otherwise, the others write into the run folder.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .base import MetricsLogger

_PROJECT = "mini-agentic-rl"


class _Service(MetricsLogger, ABC):
    """A logger over an open handle of a foreign package; `_end` is called once, however often it is closed."""

    _open = True

    def close(self) -> None:
        if self._open:
            self._open = False
            self._end()

    @abstractmethod
    def _end(self) -> None: ...


class TensorBoardLogger(_Service):
    """Event files under `run_dir/tensorboard`.

    Raises:
        ImportError: `tensorboard` is not installed.
    """

    def __init__(self, run_dir: Path) -> None:
        self._writer = _load("tensorboard.summary", "tensorboard").Writer(str(run_dir / "tensorboard"))

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)
        self._writer.flush()

    def _end(self) -> None:
        self._writer.close()


class WandbLogger(_Service):
    """Weights & Biases, offline under `run_dir/wandb` unless `WANDB_MODE` is set; `WANDB_PROJECT` names the project.

    Raises:
        ImportError: `wandb` is not installed.
    """

    def __init__(self, run_dir: Path) -> None:
        wandb = _load("wandb", "wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=run_dir.name,
            dir=str(run_dir),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._run.log({name: float(value) for name, value in metrics.items()}, step=step)

    def _end(self) -> None:
        self._run.finish()


class SwanLabLogger(_Service):
    """SwanLab, offline under `run_dir/swanlab` unless `SWANLAB_MODE` is set.

    Raises:
        ImportError: `swanlab` is not installed.
    """

    def __init__(self, run_dir: Path) -> None:
        swanlab = _load("swanlab", "swanlab")
        self._run = swanlab.init(
            project=_PROJECT,
            experiment_name=run_dir.name,
            logdir=str(run_dir / "swanlab"),
            mode=os.environ.get("SWANLAB_MODE", "offline"),
        )

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._run.log({name: float(value) for name, value in metrics.items()}, step=step)

    def _end(self) -> None:
        self._run.finish()


class MlflowLogger(_Service):
    """MLflow, in the SQLite file `run_dir/mlflow.db` unless `MLFLOW_TRACKING_URI` is set.

    Raises:
        ImportError: `mlflow` is not installed.
    """

    def __init__(self, run_dir: Path) -> None:
        tracking = _load("mlflow.tracking", "mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run_dir / 'mlflow.db').resolve()}"
        self._client = tracking.MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(_PROJECT)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(_PROJECT)
        self._run_id: str = self._client.create_run(experiment_id, run_name=run_dir.name).info.run_id

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._run_id, name, float(value), step=step)

    def _end(self) -> None:
        self._client.set_terminated(self._run_id)


class TrackioLogger(_Service):
    """Trackio, in its own local folder (`TRACKIO_DIR`, by default in the user's cache).

    Raises:
        ImportError: `trackio` is not installed.
    """

    def __init__(self, run_dir: Path) -> None:
        trackio = _load("trackio", "trackio")
        self._run = trackio.init(project=_PROJECT, name=run_dir.name, embed=False)

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._run.log({name: float(value) for name, value in metrics.items()}, step=step)

    def _end(self) -> None:
        self._run.finish()


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"the {package} logger needs the package {package!r}: "
            "pip install 'mini-agentic-rl[loggers]', or leave it out of `loggers`"
        ) from error
