"""The run folder keeps what was written whole, and is never taken over silently; a run of a trainer in its folder."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from agents_for_trainer import Half
from letters import TASKS, CountLetters, Kept, Letters, algorithm

from mini_agentic_rl import Baseline, Trainer
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway import load_tokenizer
from mini_agentic_rl.metrics import MetricsLogger, read_metrics
from mini_agentic_rl.trainer import what_next
from mini_agentic_rl.trainer.run_folder import RunFolder
from tiny import tiny_tokenizer

CONFIG = {"model": "tiny", "learning_rate": 1e-3, "nested": {"a": 1, "b": [1, 2]}, "output_dir": "x"}


def _write(text: str):
    return lambda folder: (folder / "adapter.bin").write_text(text)


def _full_disk(folder: Path) -> None:
    (folder / "some.bin").write_text("written before the disk was full")
    with open("/dev/full", "w") as file:
        file.write("x" * 100_000)


def _begun(path: Path) -> RunFolder:
    folder = RunFolder(path)
    assert folder.begin(CONFIG) == "new"
    return folder


def test_a_finished_run_is_not_overwritten_unless_asked(tmp_path):
    folder = _begun(tmp_path)
    folder.save_checkpoint(3, _write("three"))
    folder.write_summary({"accuracy": []})
    with pytest.raises(UserError, match=r"finished run.*`overwrite`"):
        RunFolder(tmp_path).begin(CONFIG)
    assert folder.latest_checkpoint() == (3, folder.checkpoint_path(3))
    assert RunFolder(tmp_path).begin({"model": "other"}, overwrite=True) == "new"
    assert folder.latest_checkpoint() is None
    assert folder.read_summary() == {}
    assert folder.read_config() == {"model": "other"}


def test_files_of_somebody_else_are_not_overwritten(tmp_path):
    (tmp_path / "adapter").mkdir()
    with pytest.raises(UserError, match=r"no config\.json"):
        RunFolder(tmp_path).begin(CONFIG)


def test_resuming_with_other_settings_names_them(tmp_path):
    _begun(tmp_path)
    changed = CONFIG | {"learning_rate": 2e-3, "nested": {"a": 1, "b": [1, 3]}, "output_dir": "y", "new": True}
    with pytest.raises(UserError) as caught:
        RunFolder(tmp_path).begin(changed, resume=True)
    message = str(caught.value)
    assert "learning_rate (was 0.001, now 0.002)" in message
    assert "nested.b (was [1, 2], now [1, 3])" in message
    assert "new (was not set, now true)" in message
    assert "output_dir" not in message
    assert "nested.a" not in message


def test_a_run_of_an_older_version_goes_on_while_new_settings_have_their_usual_values(tmp_path):
    _begun(tmp_path)
    newer = RunFolder(tmp_path, usual={"learning_rate": 9.0, "new": (1, 2)})
    assert newer.begin(CONFIG | {"new": [1, 2]}, resume=True) == "resumed"
    with pytest.raises(UserError, match=r"new \(was \[1, 2\], now \[3\]\)"):
        newer.begin(CONFIG | {"new": [3]}, resume=True)


def test_resuming_tells_how_far_the_run_had_come(tmp_path):
    assert RunFolder(tmp_path).begin(CONFIG, resume=True) == "new"
    assert RunFolder(tmp_path).begin(CONFIG, resume=True) == "resumed"
    RunFolder(tmp_path).write_summary({})
    assert RunFolder(tmp_path).begin(CONFIG, resume=True) == "finished"


def test_a_damaged_configuration_and_contradicting_settings_are_named(tmp_path):
    with pytest.raises(UserError, match="contradict"):
        RunFolder(tmp_path).begin(CONFIG, resume=True, overwrite=True)
    _begun(tmp_path).config_path.write_text("{")
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        RunFolder(tmp_path).begin(CONFIG, resume=True)


def test_only_the_last_checkpoints_are_kept(tmp_path):
    folder = _begun(tmp_path)
    for step in (8, 9, 10):
        folder.save_checkpoint(step, _write(str(step)))
    assert [step for step, _ in folder.checkpoints()] == [9, 10]
    step, path = folder.latest_checkpoint()
    assert (step, (path / "adapter.bin").read_text()) == (10, "10")


def test_a_full_disk_while_saving_the_adapter_keeps_the_earlier_one(tmp_path):
    folder = _begun(tmp_path)
    folder.save_result("adapter", _write("one"))
    with pytest.raises(UserError, match="no space left"):
        folder.save_result("adapter", _full_disk)
    assert (folder.adapter_path / "adapter.bin").read_text() == "one"


def test_a_writer_that_hides_the_full_disk_in_an_error_of_its_own_is_understood(tmp_path):
    folder = _begun(tmp_path)

    def write(partial: Path) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    assert folder.save_checkpoint(1, write) is None


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/step_1", "adapter", "logs", "metrics.jsonl", "epoch_1"])
def test_what_is_behind_a_link_is_neither_deleted_nor_written(tmp_path, name):
    folder = _begun(tmp_path / "run")
    theirs = tmp_path / "theirs"
    for one in ("step_1", ".partial-step_2", "mine"):
        (theirs / one).mkdir(parents=True)
        (theirs / one / "kept").write_text("kept")
    (theirs / "rank_0.log").write_text("kept")
    link = folder.path / name
    if link.is_dir():
        link.rmdir()
    link.symlink_to(theirs if link.suffix == "" else theirs / "rank_0.log")
    for how in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(UserError, match="is a link"):
            RunFolder(tmp_path / "run").begin(CONFIG, **how)
        assert link.is_symlink()
    assert len([path for path in theirs.rglob("*") if path.is_file() and path.read_text() == "kept"]) == 4


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_no_run_wrote_stays_in_the_folders_of_a_run(tmp_path, overwrite):
    folder = _begun(tmp_path)
    if overwrite:
        folder.save_checkpoint(3, _write("three"))
    folder.metrics_path.write_text('{"step": 1}\n')
    folder.logs_path.mkdir(exist_ok=True)
    (folder.logs_path / "rank_1.log").write_text("a line")
    foreign = ["checkpoints/notes.txt", "checkpoints/best/weights", "checkpoints/step_3_copy/weights"]
    foreign += ["checkpoints/step_7", "logs/train.log", "logs/old/x"]
    for name in foreign:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    assert RunFolder(tmp_path).begin(CONFIG, overwrite=overwrite) == "new"
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"config.json", *foreign}


@pytest.mark.parametrize("kind", ["checkpoint", "adapter", "adapters", "prompt"])
def test_what_an_unfinished_run_has_trained_is_not_deleted_unless_asked(tmp_path, kind):
    folder = _begun(tmp_path)
    if kind == "checkpoint":
        path = folder.save_checkpoint(3, _write("trained"))
    else:
        path = folder.save_result(kind, _write("trained"))
    with pytest.raises(UserError, match=rf"unfinished run with .*{kind}.*`overwrite`"):
        RunFolder(tmp_path).begin(CONFIG)
    assert (path / "adapter.bin").read_text() == "trained"
    assert RunFolder(tmp_path).begin(CONFIG, overwrite=True) == "new"
    assert not path.exists()


SMALL = {"tasks_per_step": 2, "samples_per_prompt": 2, "eval_size": 2, "checkpoint_every": 1}


def _fit(folder, steps=1, **settings):
    given = {"logger": MetricsLogger(), **settings}
    trainer = Trainer(
        algorithm=algorithm(total_steps=steps, **SMALL), hooks=[CountLetters()], n_runners=4, output_dir=folder, **given
    )
    trainer.fit(Letters(), TASKS, val_dataset=TASKS)
    return trainer


def test_a_run_leaves_configuration_metrics_summary_and_report_and_says_what_to_do_next(tmp_path):
    kept = Kept()
    _fit(tmp_path, logger=kept)
    assert kept.notes[-2:] == [
        f"to use what was trained: mini-agentic-rl chat --model {tmp_path / 'adapter'}",
        f"or behind a URL:         mini-agentic-rl serve --model {tmp_path / 'adapter'}",
    ]
    assert len(load_tokenizer(str(tmp_path / "adapter"))) == len(tiny_tokenizer())
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["algorithm"], config["agent"], config["tasks"]) == ("MiniGRPO", "Letters", {"train": 8, "val": 8})
    assert (config["loop"]["total_steps"], config["learner"]["learning_rate"]) == (1, 3e-3)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [name in row for row, name in zip(rows, ("accuracy", "reward/mean", "accuracy"), strict=True)] == [True] * 3
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [row["name"] for row in summary["accuracy"]] == ["before", "after RL"]
    assert (summary["steps"], summary["seed"]) == (1, 0)
    assert summary["versions"]["torch"]
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_what_to_do_next_names_the_adapter_only_where_there_is_one(tmp_path):
    folder = RunFolder(tmp_path / "my run")
    assert what_next(folder) == [f"the run is in {tmp_path / 'my run'}: report.html has its curves and transcripts"]
    folder.adapter_path.mkdir(parents=True)
    assert what_next(folder)[-1] == f"or behind a URL:         mini-agentic-rl serve --adapter '{folder.adapter_path}'"


def test_a_folder_that_holds_a_run_is_refused_and_replaced_only_when_that_is_said(tmp_path):
    trainer = Trainer(algorithm=Baseline(), output_dir=tmp_path / "run")
    trainer.dev(Half(), ["a"])  # writes nothing
    assert not (tmp_path / "run").exists()
    trainer.fit(Half(), ["a"])
    with pytest.raises(UserError, match="holds a finished run: choose another folder, or give `overwrite`"):
        trainer.fit(Half(), ["b"])
    Trainer(algorithm=Baseline(), output_dir=tmp_path / "run", overwrite=True).fit(Half(), ["a", "b", "c"])
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rollouts"] == {"succeeded": 3}
    with pytest.raises(ValueError, match="overwrite needs output_dir"):
        Trainer(algorithm=Baseline(), overwrite=True)


def test_a_second_call_begins_at_the_beginning_and_leaves_no_checkpoint_of_the_first(tmp_path):
    trainer = _fit(tmp_path, steps=3)
    trainer.algorithm.settings = trainer.algorithm.settings.model_copy(update={"total_steps": 1})
    trainer.overwrite = True
    trainer.fit(Letters(), TASKS, val_dataset=TASKS)
    assert trainer.algorithm.summary["steps"] == 1
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_0", "step_1"]


def test_a_finished_run_that_is_resumed_gives_its_results_and_trains_nothing(tmp_path):
    _fit(tmp_path)
    written = {name: (tmp_path / name).read_bytes() for name in ("summary.json", "metrics.jsonl", "config.json")}
    again = _fit(tmp_path, resume=True)
    assert again.algorithm.summary["steps"] == 1
    assert {name: (tmp_path / name).read_bytes() for name in written} == written

    Trainer(algorithm=Baseline(), output_dir=tmp_path / "tried").fit(Half(), ["a"])
    summary = asyncio.run(
        Trainer(algorithm=Baseline(), output_dir=tmp_path / "tried", resume=True).train(Half(), ["a"])
    )
    assert summary["rollouts"] == {"succeeded": 1}
