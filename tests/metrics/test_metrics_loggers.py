"""Loggers are made by name; several act as one; those of other packages are real where the package is installed."""

from __future__ import annotations

import sqlite3
import sys
import types

import pytest

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.jobs import TrainConfig, train_job
from mini_agentic_rl.metrics import GuardedLogger, MetricsLogger, MultiLogger, check_loggers, make_logger, read_metrics
from mini_agentic_rl.trainer import RunFolder, RunSettings, record_run


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
    def init(**how):
        raise ConnectionError("nobody answers at https://api.wandb.ai?api_key=secret1\nmore")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    with make_logger(["jsonl", "wandb"], tmp_path) as logger:
        logger.log({"reward": 1.0}, step=1)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1
    (told,) = caplog.messages
    assert "the wandb logger could not begin (nobody answers" in told
    assert "WANDB_MODE=offline" in told
    assert "secret1" not in told


def test_tensorboard_shows_a_table_as_it_is_and_where_an_artifact_is(tmp_path):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed: TensorBoardLogger is left unchecked",
    )
    (tmp_path / "adapter.bin").write_bytes(b"1234")
    with make_logger(["tensorboard"], tmp_path) as logger:
        logger.log({"reward": 1.0}, step=7)
        logger.table("transcripts", [{"reward": 1.0, "conversation": "a | b\n<script>"}, {"reward": None}])
        logger.table("nothing", [])
        logger.artifact("adapter", [tmp_path / "adapter.bin"])
    found = events.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    (table,), (artifact,) = found.Tensors("transcripts"), found.Tensors("artifacts/adapter")
    assert (table.step, artifact.step) == (7, 7)
    lines = table.tensor_proto.string_val[0].decode().splitlines()
    assert lines[2:] == ["| 1.0 | a \\| b<br>&lt;script> |", "|  |  |"]
    assert "adapter.bin` (4 bytes)" in artifact.tensor_proto.string_val[0].decode()


def test_loggers_are_made_by_name(tmp_path):
    with make_logger(["jsonl"], tmp_path) as logger:
        logger.log({"reward": 1.0}, step=1)
    with make_logger(["jsonl"], tmp_path, keep_rows=0) as logger:
        logger.log({"reward": 2.0}, step=1)
    assert [row["reward"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [2.0]


def test_a_wrong_logger_name_is_told(tmp_path):
    with pytest.raises(UserError, match=r"loggers: .*'paper'"):
        make_logger(["jsonl", "paper"], tmp_path)


def test_a_logger_that_is_named_twice_writes_once(tmp_path):
    with make_logger(["jsonl", "jsonl"], tmp_path) as logger:
        logger.log({"reward": 1.0}, step=1)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


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


@pytest.mark.parametrize("given", ["tensorboard,wandb", ["tensorboard", "wandb"], ["console, tensorboard", "wandb"]])
def test_loggers_may_be_given_with_commas_or_one_by_one(given):
    assert [name for name in RunSettings(loggers=given).loggers if name != "console"] == ["tensorboard", "wandb"]


def test_a_logger_comes_beside_the_console_and_the_file(tmp_path, monkeypatch):
    asked = []

    def make(names, run_dir, **how):
        asked.append((list(names), how["hyperparameters"]))
        return MetricsLogger()

    monkeypatch.setattr("mini_agentic_rl.trainer.recorded_run.make_logger", make)
    for name, quiet in (("one", {}), ("two", {"console": False})):
        settings = RunSettings(output_dir=tmp_path / name, loggers=["tensorboard"], **quiet)
        record_run(RunFolder(tmp_path / name), settings, {"seed": 3}, lambda run: {}, rows_to_keep=lambda _: 0)
    assert asked == [(["console", "jsonl", "tensorboard"], {"seed": 3}), (["jsonl", "tensorboard"], {"seed": 3})]


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_key_puts_a_service_online_and_its_own_variable_decides_before_that(tmp_path, monkeypatch, name):
    modes = []

    class Run:
        def define_metric(self, *_, **__): ...
        def finish(self): ...

    def init(**how):
        modes.append((how["mode"], how["config"]))
        return Run()

    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(init=init))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for variable in ("NETRC", f"{name.upper()}_API_KEY", f"{name.upper()}_MODE"):
        monkeypatch.delenv(variable, raising=False)

    def begin():
        make_logger([name], tmp_path, hyperparameters={"seed": 1}).close()

    begin()
    login = tmp_path / {"wandb": ".netrc", "swanlab": ".swanlab/.netrc"}[name]
    login.parent.mkdir(exist_ok=True)
    login.write_text("machine api.wandb.ai login user password secret\n")
    begin()
    login.unlink()
    monkeypatch.setenv(f"{name.upper()}_API_KEY", "secret")
    begin()
    monkeypatch.setenv(f"{name.upper()}_MODE", "offline")
    begin()
    assert modes == [(mode, {"seed": 1}) for mode in ("offline", "online", "online", "offline")]


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


def test_tensorboard_gets_the_configuration_of_the_run(tmp_path):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed: TensorBoardLogger is left unchecked",
    )
    plugin_data = pytest.importorskip(
        "tensorboard.plugins.hparams.plugin_data_pb2",
        reason="tensorboard has no HParams plugin: that it gets the configuration is left unchecked",
    )
    settings = {"seed": 3, "loop": {"lr": 0.5, "deterministic": True}, "difficulty": [1, 2], "none": None}
    for _ in range(2):  # a run that goes on tells it again
        with make_logger(["tensorboard"], tmp_path, hyperparameters=settings) as logger:
            logger.log({"reward/mean": 0.25}, step=1)
    accumulator = events.EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    tags = accumulator.PluginTagToContent("hparams")
    told = plugin_data.HParamsPluginData.FromString(tags["_hparams_/session_start_info"]).session_start_info
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in told.hparams.items()}
    assert values == {
        "seed": 3.0,
        "loop.lr": 0.5,
        "loop.deterministic": True,
        "difficulty": "[1, 2]",
        "none": "null",
    }


def test_mlflow_keeps_its_numbers_in_the_run_folder(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed: MlflowLogger is left unchecked")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with make_logger(["mlflow"], tmp_path, hyperparameters={"seed": 3, "difficulty": [1, 2]}) as logger:
        logger.log({"reward": 0.25}, step=1)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert database.execute("select key, value, step from metrics").fetchall() == [("reward", 0.25, 1)]
        assert dict(database.execute("select key, value from params")) == {"seed": "3", "difficulty": "[1, 2]"}


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_offline_services_write_into_the_run_folder(tmp_path, monkeypatch, capfd, name):
    pytest.importorskip(name, reason=f"{name} is not installed: its logger is left unchecked")
    monkeypatch.setenv(f"{name.upper()}_MODE", "offline")
    with make_logger([name], tmp_path, hyperparameters={"seed": 31415926}) as logger:
        logger.log({"sft/loss": 2.5}, step=8)
        logger.log({"reward": 0.015625}, step=1)
    written = b"".join(path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file())
    assert b"31415926" in written
    told = capfd.readouterr()
    assert told.out == ""
    assert "ignored" not in told.err
