"""SwanLab, MLflow and Trackio are loggers by their names, found by entry points."""

from __future__ import annotations

import sqlite3
import sys

import pytest

from metrics import service_checks
from mini_agentic_rl import metrics
from mini_agentic_rl.commands import TrainConfig, train_job
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.integrations import loggers
from mini_agentic_rl.metrics import check_loggers, make_logger
from mini_agentic_rl.plugins import load_plugin
from mini_agentic_rl.trainer import RunSettings

CLASSES = {"swanlab": "SwanLabLogger", "mlflow": "MlflowLogger", "trackio": "TrackioLogger"}


def test_each_is_found_by_its_name_and_was_a_name_of_metrics():
    for name, kind in CLASSES.items():
        assert RunSettings(loggers=f"tensorboard,{name}").loggers == ["tensorboard", name]
        assert load_plugin("loggers", name, setting="loggers") is getattr(metrics, kind) is getattr(loggers, kind)


def test_packages_that_clash_are_told_in_one_line_before_a_run_begins(tmp_path, monkeypatch):
    package = tmp_path / "packages" / "swanlab"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise TypeError('Descriptors cannot be created directly.\\nIf this call')")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "swanlab", raising=False)
    with pytest.raises(UserError, match="swanlab logger cannot be loaded beside") as told:
        check_loggers(["tensorboard", "swanlab"])
    assert "\n" not in str(told.value)
    assert "pip install --upgrade swanlab protobuf" in str(told.value)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text("{}")
    settings = RunSettings(output_dir=tmp_path / "run", loggers="swanlab", overwrite=True)
    with pytest.raises(UserError, match="swanlab logger"):
        train_job(TrainConfig(run=settings, model="a/model/that/is/not/looked/for"))
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_key_puts_swanlab_online_and_its_own_variable_decides_before_that(tmp_path, monkeypatch):
    service_checks.a_key_puts_it_online_and_its_own_variable_decides_before_that(
        "swanlab", ".swanlab/.netrc", tmp_path, monkeypatch
    )


def test_swanlab_is_left_out_where_it_cannot_begin(tmp_path, monkeypatch, caplog):
    service_checks.one_that_cannot_begin_is_left_out("swanlab", tmp_path, monkeypatch, caplog)


def test_swanlab_writes_into_the_run_folder_while_it_is_offline(tmp_path, monkeypatch, capfd):
    service_checks.offline_it_writes_into_the_run_folder("swanlab", tmp_path, monkeypatch, capfd)


def test_mlflow_keeps_its_numbers_in_the_run_folder(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed: MlflowLogger is left unchecked")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with make_logger(["mlflow"], tmp_path, hyperparameters={"seed": 3, "difficulty": [1, 2]}) as logger:
        logger.log({"reward": 0.25}, step=1)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert database.execute("select key, value, step from metrics").fetchall() == [("reward", 0.25, 1)]
        assert dict(database.execute("select key, value from params")) == {"seed": "3", "difficulty": "[1, 2]"}
