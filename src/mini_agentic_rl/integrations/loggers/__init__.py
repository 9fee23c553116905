"""Loggers of SwanLab, MLflow and Trackio, for `--loggers swanlab,mlflow,trackio`.

SwanLab is online if its key is configured, else offline in the run folder. The others write into the run folder unless
their environment variables name another place.
"""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...metrics.services import PROJECT, RunLogger, ServiceLogger, artifact_name, as_text, hosts_of_logins

_LONGEST_PARAMETER = 6000
_PARAMETERS_AT_ONCE = 100


class SwanLabLogger(RunLogger):
    """SwanLab: online with a key (`SWANLAB_API_KEY`, or `swanlab login`), else offline under `run_dir/swanlab`.

    `SWANLAB_MODE` decides before that.
    """

    package = module = "swanlab"
    offline_setting = "SWANLAB_MODE=offline"

    def _begin(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None:
        logins = [folder / ".swanlab" / ".netrc" for folder in (Path.cwd(), Path.home())]
        has_key = bool(os.environ.get("SWANLAB_API_KEY")) or any(map(hosts_of_logins, logins))
        self._run = self.load().init(
            project=PROJECT,
            experiment_name=run_dir.name,
            logdir=str(run_dir / "swanlab"),
            mode=os.environ.get("SWANLAB_MODE") or ("online" if has_key else "offline"),
            config=dict(hyperparameters),
        )

    def _add_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        chart = self.load().echarts.Table()
        self._run.log({name: chart.add(columns, rows)}, step=self._last_step)

    def _add_artifact(self, name: str, files: Sequence[Path]) -> None:
        for file in files:
            self._run.save(glob.escape(str(file)), base_path=str(file.parent.parent), policy="now")


class MlflowLogger(ServiceLogger):
    """MLflow, in the SQLite file `run_dir/mlflow.db` unless `MLFLOW_TRACKING_URI` is set.

    `MLFLOW_EXPERIMENT_NAME` names the experiment.
    """

    package = "mlflow"
    module = "mlflow.tracking"

    def _begin(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None:
        tracking = self.load()
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run_dir / 'mlflow.db').resolve()}"
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        self._client = tracking.MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(name)
        artifacts = None if os.environ.get("MLFLOW_TRACKING_URI") else (run_dir / "mlartifacts").resolve().as_uri()
        experiment_id = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(name, artifact_location=artifacts)
        )
        self._run_id: str = self._client.create_run(experiment_id, run_name=run_dir.name).info.run_id
        parameter = importlib.import_module("mlflow.entities").Param
        rows = [parameter(name, as_text(value)[:_LONGEST_PARAMETER]) for name, value in hyperparameters.items()]
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


class TrackioLogger(RunLogger):
    """Trackio, in its own local folder (`TRACKIO_DIR`), or in the Space that `TRACKIO_SPACE_ID` names."""

    package = module = "trackio"

    def _begin(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None:
        self._run = self.load().init(project=PROJECT, name=run_dir.name, embed=False, config=dict(hyperparameters))

    def _add_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        self._run.log({name: self.load().Table(columns=columns, data=rows)}, step=self._last_step)

    def _add_artifact(self, name: str, files: Sequence[Path]) -> None:
        made = self.load().Artifact(artifact_name(self._run.name, name), type="model")
        for file in files:
            made.add_file(str(file), name=file.name)
        self._run.log_artifact(made)
