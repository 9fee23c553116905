"""Loggers are made by name, several act as one, and services are real where installed; `metrics.jsonl`; Prometheus."""

from __future__ import annotations

import asyncio
import json
import math
import os

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from metrics import service_checks
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.metrics import (
    GuardedLogger,
    JsonlLogger,
    MetricsLogger,
    MultiLogger,
    PrometheusLogger,
    make_logger,
    read_metrics,
    rows_until,
)
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreError, LightningStoreServer
from mini_agentic_rl.trainer import RunFolder, RunSettings, open_run


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


class Failing(Recorder):
    """Fails at every call, but for those that are made while it `works`."""

    works = False

    def log(self, metrics, *, step):
        super().log(metrics, step=step)
        if not self.works:
            raise ConnectionError(f"https://user:secret@host is away since {step}\nand more")

    def table(self, name, rows):
        raise TypeError("no tables here")

    def artifact(self, name, files):
        raise OSError("no room")


def test_a_service_that_fails_stops_no_run_and_is_told_once(caplog):
    failing, sound = Failing(fail=True), Recorder()
    logger = MultiLogger([GuardedLogger("wandb", failing), sound])
    logger.log({"a": 1.0}, step=1)
    logger.table("transcripts", [{"conversation": "hello"}])
    logger.artifact("adapter", [])
    failing.works = True
    logger.log({"a": 1.0}, step=2)
    logger.close()
    assert [call[0] for call in sound.calls] == ["log", "log", "close"]
    assert [record.message for record in caplog.records] == [
        "the wandb logger fails (https://***@host is away since 1); the run goes on without what it missed"
    ]


def test_a_service_that_stays_away_is_left_alone_after_a_while_and_still_closed(caplog):
    failing = Failing()
    logger = GuardedLogger("wandb", failing)
    for step in range(20):
        logger.log({"a": 1.0}, step=step)
    logger.close()
    assert [call[0] for call in failing.calls] == ["log"] * 5 + ["close"]
    assert "failed 5 times in a row and is left alone" in caplog.text


def test_a_service_that_cannot_begin_is_left_out(tmp_path, monkeypatch, caplog):
    service_checks.one_that_cannot_begin_is_left_out("wandb", tmp_path, monkeypatch, caplog)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_tensorboard_has_the_metrics_the_configuration_a_table_and_the_paths_of_an_artifact(tmp_path):
    module = "tensorboard.backend.event_processing.event_accumulator"
    events = pytest.importorskip(module, reason="tensorboard is not installed: TensorBoardLogger is left unchecked")
    plugin_data = pytest.importorskip(
        "tensorboard.plugins.hparams.plugin_data_pb2",
        reason="tensorboard has no HParams plugin: TensorBoardLogger is left unchecked",
    )
    settings = {"seed": 3, "loop": {"lr": 0.5, "deterministic": True}, "difficulty": [1, 2], "none": None}
    (tmp_path / "adapter.bin").write_bytes(b"1234")
    for step in (6, 7):  # a run that goes on tells its configuration again
        with make_logger(["tensorboard"], tmp_path, hyperparameters=settings) as logger:
            logger.log({"reward": 0.5}, step=step)
            if step == 7:
                logger.table("transcripts", [{"reward": 1.0, "conversation": "a | b\n<script>"}, {"reward": None}])
                logger.table("nothing", [])
                logger.artifact("adapter", [tmp_path / "adapter.bin"])
    found = events.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    (table,), (artifact,) = found.Tensors("transcripts/text_summary"), found.Tensors("artifacts/adapter/text_summary")
    assert [event.step for event in found.Tensors("reward")] == [6, 7]
    assert (table.step, artifact.step) == (7, 7)
    lines = table.tensor_proto.string_val[0].decode().splitlines()
    assert lines[2:] == ["| 1.0 | a \\| b<br>&lt;script> |", "|  |  |"]
    assert "adapter.bin` (4 bytes)" in artifact.tensor_proto.string_val[0].decode()
    tags = found.PluginTagToContent("hparams")
    told = plugin_data.HParamsPluginData.FromString(tags["_hparams_/session_start_info"]).session_start_info
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in told.hparams.items()}
    assert values == {
        "seed": 3.0,
        "loop.lr": 0.5,
        "loop.deterministic": True,
        "difficulty": "[1, 2]",
        "none": "null",
    }


def test_loggers_are_made_by_name(tmp_path):
    with make_logger(["jsonl", "jsonl"], tmp_path) as logger:
        logger.log({"reward": 1.0}, step=1)
    with make_logger(["jsonl"], tmp_path, keep_rows=0) as logger:
        logger.log({"reward": 2.0}, step=1)
    assert [row["reward"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [2.0]
    with pytest.raises(UserError, match=r"loggers: .*'paper'"):
        make_logger(["jsonl", "paper"], tmp_path)


@pytest.mark.parametrize("given", ["tensorboard,wandb", ["tensorboard", "wandb"], ["console, tensorboard", "wandb"]])
def test_loggers_may_be_given_with_commas_or_one_by_one(given):
    assert [name for name in RunSettings(loggers=given).loggers if name != "console"] == ["tensorboard", "wandb"]


def test_a_logger_comes_beside_the_console_and_the_file(tmp_path, monkeypatch):
    asked = []

    def make(names, run_dir, **how):
        asked.append((list(names), how["hyperparameters"]))
        return MetricsLogger()

    monkeypatch.setattr("mini_agentic_rl.trainer.run.make_logger", make)
    for name, quiet in (("one", {}), ("two", {"console": False})):
        settings = RunSettings(output_dir=tmp_path / name, loggers=["tensorboard"], **quiet)
        with open_run(RunFolder(tmp_path / name), settings, {"seed": 3}, rows_to_keep=lambda _: 0):
            pass
    assert asked == [(["console", "jsonl", "tensorboard"], {"seed": 3}), (["jsonl", "tensorboard"], {"seed": 3})]


def test_a_key_puts_wandb_online_and_its_own_variable_decides_before_that(tmp_path, monkeypatch):
    service_checks.a_key_puts_it_online_and_its_own_variable_decides_before_that(
        "wandb", ".netrc", tmp_path, monkeypatch
    )


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, name, module):
    service_checks.a_missing_package_is_named_with_its_extra(name, module, tmp_path, monkeypatch)


def test_wandb_writes_into_the_run_folder_while_it_is_offline(tmp_path, monkeypatch, capfd):
    service_checks.offline_it_writes_into_the_run_folder("wandb", tmp_path, monkeypatch, capfd)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def _log(path, steps, **arguments):
    with JsonlLogger(path, **arguments) as logger:
        logger.phase("RL")
        for step in steps:
            logger.log({"reward": step / 10}, step=step)


def test_a_row_can_be_read_before_the_file_is_closed(path):
    logger = JsonlLogger(path)
    logger.phase("SFT", 10)
    logger.log({"loss": np.float32(0.5), "tokens": 12}, step=3)
    (row,) = read_metrics(path)
    assert (row["phase"], row["step"], row["loss"], row["tokens"]) == ("SFT", 3, 0.5, 12)
    logger.close()
    logger.close()


def test_a_number_that_is_not_finite_is_written_as_null(path):
    with JsonlLogger(path) as logger:
        logger.log({"loss": math.nan, "kl": math.inf, "reward": 1.0}, step=1)
    row = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (row["loss"], row["kl"], row["reward"]) == (None, None, 1.0)


@pytest.mark.parametrize("torn", [b'{"step": 3, "rew', b'{"step": 3}', b"\xff\x00\n", b"[]\n"])
def test_a_torn_last_line_is_cut_off(path, torn):
    _log(path, [1, 2])
    with path.open("ab") as file:
        file.write(torn)
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
    _log(path, [3])
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]


def test_resuming_cuts_off_what_came_after_the_checkpoint(path):
    assert read_metrics(path) == []
    _log(path, range(1, 8))
    _log(path, [6], keep_rows=rows_until(path, 5))
    rows = read_metrics(path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert path.read_bytes().count(b"\n") == len(rows)
    _log(path, [], keep_rows=0)
    assert os.path.getsize(path) == 0


def test_a_full_disk_is_told_and_costs_no_row_once_there_is_room(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    real = os.dup(logger._file.fileno())
    with open("/dev/full", "w") as full:
        os.dup2(full.fileno(), logger._file.fileno())
    logger.log({"loss": 1.0}, step=0)
    logger.log({"loss": 2.0}, step=1)
    assert caplog.text.count("metrics not written") == 1
    os.dup2(real, logger._file.fileno())
    os.close(real)
    logger.log({"loss": 3.0}, step=2)
    logger.close()
    assert [row["loss"] for row in read_metrics(path)] == [1.0, 2.0, 3.0]


def samples_of(text):
    """Return the values of samples, by name and values of labels."""
    return {
        (sample.name.removeprefix("mini_agentic_rl_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_the_latest_numbers_until_the_logger_is_closed():
    logger = PrometheusLogger(0)
    address = f"http://127.0.0.1:{logger.port}/metrics"
    logger.phase("RL", 3)
    for step, reward in ((1, 0.25), (2, 0.5)):
        logger.log({"reward/mean": reward}, step=step)
        logger.advance()
    samples = samples_of(httpx.get(address).text)
    assert samples.pop(("training_logged_seconds",)) > 1e9
    assert samples == {
        ("training_metric", "reward/mean"): 0.5,
        ("training_step",): 2,
        ("training_phase_done", "RL"): 2,
        ("training_phase_total", "RL"): 3,
    }
    logger.close()
    logger.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


def test_a_port_that_is_taken_is_told_with_its_setting():
    first = PrometheusLogger(0)
    with pytest.raises(UserError, match=r"metrics_port: .*port \d+ at 127.0.0.1 cannot be opened"):
        PrometheusLogger(first.port)
    first.close()


async def test_a_store_tells_its_requests_what_it_holds_and_its_rollouts_by_status():
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    assert (await asyncio.to_thread(httpx.get, f"{server.endpoint}/v1/agl/rollouts")).is_success
    samples = samples_of((await asyncio.to_thread(httpx.get, f"{server.endpoint}/metrics")).text)
    await server.stop()
    names = {name for name, *_ in samples}
    assert names >= {f"store_{name}" for name in ("items", "rollouts", "requests_total", "request_seconds_bucket")}
    assert any(name[0] == "store_requests_total" and value == 1 for name, value in samples.items())


async def test_a_store_that_does_not_answer_is_told_as_such():
    class Broken(InMemoryLightningStore):
        async def statistics(self):
            raise LightningStoreError("the disk is away")

    server = LightningStoreServer(Broken(), port=0)
    await server.start()
    answer = await asyncio.to_thread(httpx.get, f"{server.endpoint}/metrics")
    await server.stop()
    assert (answer.status_code, answer.json()["detail"]) == (503, "the disk is away")
