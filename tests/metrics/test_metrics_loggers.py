"""Loggers are made by name; several act as one; those of other packages are real where the package is installed."""

from __future__ import annotations

import pytest

from metrics import service_checks
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.metrics import GuardedLogger, MetricsLogger, MultiLogger, make_logger, read_metrics
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


def test_tensorboard_has_the_metrics_a_table_and_the_paths_of_an_artifact(tmp_path):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed: TensorBoardLogger is left unchecked",
    )
    (tmp_path / "adapter.bin").write_bytes(b"1234")
    with make_logger(["tensorboard"], tmp_path) as logger:
        logger.log({"reward": 0.5}, step=6)
        logger.log({"reward": 1.0}, step=7)
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


def test_loggers_are_made_by_name(tmp_path):
    with make_logger(["jsonl", "jsonl"], tmp_path) as logger:
        logger.log({"reward": 1.0}, step=1)
    with make_logger(["jsonl"], tmp_path, keep_rows=0) as logger:
        logger.log({"reward": 2.0}, step=1)
    assert [row["reward"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [2.0]


def test_a_wrong_logger_name_is_told(tmp_path):
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


def test_a_key_puts_wandb_online_and_its_own_variable_decides_before_that(tmp_path, monkeypatch):
    service_checks.a_key_puts_it_online_and_its_own_variable_decides_before_that(
        "wandb", ".netrc", tmp_path, monkeypatch
    )


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, name, module):
    service_checks.a_missing_package_is_named_with_its_extra(name, module, tmp_path, monkeypatch)


def test_wandb_writes_into_the_run_folder_while_it_is_offline(tmp_path, monkeypatch, capfd):
    service_checks.offline_it_writes_into_the_run_folder("wandb", tmp_path, monkeypatch, capfd)
