"""A training with every tracking service at once, offline: its curves, its conversations and its adapter are read back.

`make test-real` runs this in an environment that has all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest

from mini_agentic_rl import MiniGRPO
from mini_agentic_rl.metrics import check_loggers, read_metrics
from mini_agentic_rl.trainer import RunFolder, RunSettings, Trainer, recorded
from talking import Talking

SERVICES = ["tensorboard", "wandb", "swanlab", "mlflow", "trackio"]
REWARD = "reward/mean"
WORD = "an unmistakable question"

# Trackio reads this when it is imported: by the first test that makes its logger.
TRACKIO = Path(tempfile.mkdtemp(prefix="trackio-"))
os.environ["TRACKIO_DIR"] = str(TRACKIO)


@pytest.fixture(scope="module", autouse=True)
def _no_folder_of_trackio_is_left():
    yield
    shutil.rmtree(TRACKIO, ignore_errors=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_folder):
    """Return the folder of a run of two steps with all services."""
    check_loggers(SERVICES)
    path = tmp_path_factory.mktemp("runs") / "mine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(path.parent / "home"))
        for name in ("WANDB_MODE", "SWANLAB_MODE"):
            patch.setenv(name, "offline")
        for name in ("MLFLOW_TRACKING_URI", "TRACKIO_SPACE_ID"):
            patch.delenv(name, raising=False)
        (path.parent / "home").mkdir()
        algorithm = MiniGRPO(
            tiny_folder, total_steps=2, tasks_per_step=2, samples_per_prompt=2, max_new_tokens=4, eval_size=2
        )
        settings = RunSettings(output_dir=path, loggers=SERVICES, console=False)
        folder = RunFolder(path)
        with recorded(folder, settings, {"seed": 31415926}, algorithm) as kept:
            trainer = Trainer(algorithm=algorithm, n_runners=4, output_dir=folder, logger=kept.logger)
            tasks = [{"word": WORD}, {"word": "two"}]
            trainer.fit(Talking(), tasks, val_dataset=tasks)
    return path


def bytes_below(folder: Path) -> bytes:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files, f"{folder} is empty"
    return b"".join(path.read_bytes() for path in files)


def steps_of(run, name):
    return [(row["step"], row[name]) for row in read_metrics(run / "metrics.jsonl") if row.get(name) is not None]


def test_tensorboard_has_curves_conversations_and_the_place_of_the_adapter(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    points = [(event.step, pytest.approx(event.tensor_proto.float_val[0])) for event in found.Tensors(REWARD)]
    assert points == steps_of(run, REWARD)
    assert len(points) == 2
    (table,) = found.Tensors("transcripts/text_summary")
    assert WORD in table.tensor_proto.string_val[0].decode()
    (artifact,) = found.Tensors("artifacts/adapter/text_summary")
    assert str(run / "adapter" / "adapter_model.safetensors") in artifact.tensor_proto.string_val[0].decode()


def test_wandb_has_curves_conversations_and_the_adapter(run):
    (offline,) = (run / "wandb").glob("offline-run-*")
    (table,) = offline.rglob("*transcripts*.json")
    shown = json.loads(table.read_text())
    assert shown["columns"] == ["rollout", "reward", "expected", "conversation"]
    assert any(WORD in row[-1] for row in shown["data"])
    (log,) = offline.glob("*.wandb")
    told = log.read_bytes()
    assert REWARD.encode() in told
    assert b"-adapter" in told
    assert b"adapter_model.safetensors" in told


def test_swanlab_has_curves_conversations_and_the_adapter(run):
    told = bytes_below(run / "swanlab")
    assert b"31415926" in told
    assert REWARD.encode() in told
    assert WORD.encode() in told
    assert b"adapter_model.safetensors" in told or list((run / "swanlab").rglob("adapter_model.safetensors"))


def test_mlflow_has_curves_conversations_and_the_adapter(run):
    with sqlite3.connect(run / "mlflow.db") as database:
        rows = database.execute("select step, value from metrics where key = ? order by step", [REWARD]).fetchall()
    assert rows == steps_of(run, REWARD)
    assert len(rows) == 2
    (table,) = (run / "mlartifacts").rglob("transcripts.json")
    assert WORD in table.read_text()
    (weights,) = (run / "mlartifacts").rglob("adapter_model.safetensors")
    assert weights.read_bytes() == (run / "adapter" / "adapter_model.safetensors").read_bytes()


def test_trackio_has_curves_conversations_and_the_adapter(run):
    told = bytes_below(TRACKIO)
    assert REWARD.encode() in told
    assert WORD.encode() in told
    weights = (run / "adapter" / "adapter_model.safetensors").read_bytes()
    assert any(path.read_bytes() == weights for path in TRACKIO.rglob("*") if path.is_file())


def test_a_service_that_breaks_in_the_middle_stops_no_run(tmp_path, monkeypatch, caplog):
    from mini_agentic_rl.metrics import make_logger

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logger = make_logger(["jsonl", "mlflow"], tmp_path)
    logger.log({"reward": 0.5}, step=1)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("drop table metrics")
    for step in range(2, 9):
        logger.log({"reward": 0.5}, step=step)
    logger.close()
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 9))
    assert caplog.text.count("the mlflow logger fails") == 1
    assert caplog.text.count("failed 5 times in a row") == 1


def test_a_service_that_is_not_there_stops_no_run(tmp_path, monkeypatch, caplog):
    from mini_agentic_rl.metrics import make_logger

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with make_logger(["jsonl", "mlflow"], tmp_path) as logger:
        logger.log({"reward": 0.5}, step=1)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1
    assert "the mlflow logger could not begin" in caplog.text
