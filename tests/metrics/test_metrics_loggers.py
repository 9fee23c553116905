"""Loggers are made by name; several act as one; those of other packages are real where the package is installed."""

from __future__ import annotations

import sqlite3

import pytest

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.metrics import MetricsLogger, MultiLogger, make_logger, read_metrics


class Recorder(MetricsLogger):
    def __init__(self, fail: bool = False) -> None:
        self.calls: list[tuple] = []
        self.fail = fail

    def phase(self, name, total=None):
        self.calls.append(("phase", name, total))

    def advance(self, n=1):
        self.calls.append(("advance", n))

    def log(self, metrics, *, step):
        self.calls.append(("log", dict(metrics), step))

    def note(self, message):
        self.calls.append(("note", message))

    def close(self):
        self.calls.append(("close",))
        if self.fail:
            raise OSError("disk full")


def test_several_loggers_act_as_one():
    first, second = Recorder(), Recorder()
    with MultiLogger([first, second]) as logger:
        logger.phase("RL", 3)
        logger.advance(2)
        logger.log({"a": 1.0}, step=4)
        logger.note("hello")
    assert first.calls == second.calls
    assert first.calls == [("phase", "RL", 3), ("advance", 2), ("log", {"a": 1.0}, 4), ("note", "hello"), ("close",)]


def test_a_logger_that_fails_to_close_does_not_keep_the_others_open():
    failing, sound = Recorder(fail=True), Recorder()
    with pytest.raises(OSError, match="disk full"):
        MultiLogger([failing, sound]).close()
    assert sound.calls == [("close",)]


def test_loggers_are_made_by_name(tmp_path):
    with make_logger(["jsonl"], tmp_path) as logger:
        logger.log({"reward": 1.0}, step=1)
    with make_logger(["jsonl"], tmp_path, resume_step=0) as logger:
        logger.log({"reward": 2.0}, step=1)
    assert [row["reward"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [2.0]


@pytest.mark.parametrize(("names", "message"), [(["jsonl", "paper"], "'paper'"), (["jsonl", "jsonl"], "given twice")])
def test_a_wrong_logger_name_is_told(tmp_path, names, message):
    with pytest.raises(UserError, match=f"loggers: .*{message}"):
        make_logger(names, tmp_path)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "swanlab", "mlflow", "trackio"])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, name):
    for module in (name, "tensorboard.summary", "mlflow.tracking"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(UserError, match=rf"{name}.*mini-agentic-rl\[loggers\]"):
        make_logger(["jsonl", name], tmp_path)


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed: TensorBoardLogger is left unchecked",
    )
    with make_logger(["tensorboard"], tmp_path) as logger:
        logger.log({"reward/mean": 0.25}, step=1)
        logger.log({"reward/mean": 0.75}, step=2)
        logger.close()
    accumulator = events.EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    (tag,) = accumulator.Tags()["tensors"]
    assert tag == "reward/mean"
    assert [event.step for event in accumulator.Tensors(tag)] == [1, 2]


def test_mlflow_keeps_its_numbers_in_the_run_folder(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed: MlflowLogger is left unchecked")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with make_logger(["mlflow"], tmp_path) as logger:
        logger.log({"reward": 0.25}, step=1)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert database.execute("select key, value, step from metrics").fetchall() == [("reward", 0.25, 1)]


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_offline_services_write_into_the_run_folder(tmp_path, monkeypatch, name):
    pytest.importorskip(name, reason=f"{name} is not installed: its logger is left unchecked")
    monkeypatch.delenv(f"{name.upper()}_MODE", raising=False)
    with make_logger([name], tmp_path) as logger:
        logger.log({"reward": 0.25}, step=1)
    assert [path for path in (tmp_path / name).rglob("*") if path.is_file()]
