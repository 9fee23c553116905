"""A run of `Trainer(output_dir=…)` leaves the folder that a command leaves, and folders are guarded alike."""

from __future__ import annotations

import asyncio
import json

import pytest
from agents_for_trainer import Half
from letters import TASKS, CountLetters, Kept, Letters, algorithm

from mini_agentic_rl import Baseline, Trainer
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.metrics import MetricsLogger, read_metrics
from mini_agentic_rl.trainer import RunFolder, what_next

SMALL = {"tasks_per_step": 2, "samples_per_prompt": 2, "eval_size": 2, "checkpoint_every": 1}


class Breaks(MetricsLogger):
    """The process ends after a step."""

    def __init__(self, after: int) -> None:
        self.after = after

    def log(self, metrics, *, step):
        if step == self.after:
            raise KeyboardInterrupt


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
        f"to use what was trained: mini-agentic-rl chat --adapter {tmp_path / 'adapter'}",
        f"or behind a URL:         mini-agentic-rl serve --adapter {tmp_path / 'adapter'}",
    ]
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
    trainer = Trainer(algorithm=Baseline(), output_dir=tmp_path)
    trainer.fit(Half(), ["a"])
    for other in (trainer, Trainer(algorithm=Baseline(), output_dir=tmp_path)):
        with pytest.raises(UserError, match="holds a finished run: choose another folder, or give `overwrite`"):
            other.fit(Half(), ["b"])
    Trainer(algorithm=Baseline(), output_dir=tmp_path, overwrite=True).fit(Half(), ["a", "b", "c"])
    assert json.loads((tmp_path / "summary.json").read_text())["rollouts"] == {"succeeded": 3}
    with pytest.raises(ValueError, match="overwrite needs output_dir"):
        Trainer(algorithm=Baseline(), overwrite=True)


def test_a_second_call_begins_at_the_beginning_and_leaves_no_checkpoint_of_the_first(tmp_path):
    trainer = _fit(tmp_path, steps=3)
    trainer.algorithm.settings = trainer.algorithm.settings.model_copy(update={"total_steps": 1})
    trainer.overwrite = True
    trainer.fit(Letters(), TASKS, val_dataset=TASKS)
    assert trainer.algorithm.summary["steps"] == 1
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_0", "step_1"]


def test_a_run_is_resumed_under_the_same_settings_alone(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        _fit(tmp_path, steps=2, logger=Breaks(after=1))
    with pytest.raises(UserError, match="holds an unfinished run with a checkpoint"):
        _fit(tmp_path, steps=2)
    with pytest.raises(UserError, match=r"resume: .*other settings: loop.total_steps \(was 2, now 3\)"):
        _fit(tmp_path, steps=3, resume=True)
    assert _fit(tmp_path, steps=2, resume=True).algorithm.summary["steps"] == 2
    rows = list(read_metrics(tmp_path / "metrics.jsonl"))
    steps = [row["step"] for row in rows]
    assert steps == sorted(steps)
    assert steps.count(2) == 2  # one of training, one of what is measured after it


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


def test_trying_an_agent_out_leaves_the_folder_to_the_training(tmp_path):
    trainer = Trainer(algorithm=Baseline(), output_dir=tmp_path / "run")
    trainer.dev(Half(), ["a"])
    assert not (tmp_path / "run").exists()
    trainer.fit(Half(), ["a"])
    assert (tmp_path / "run" / "summary.json").exists()
