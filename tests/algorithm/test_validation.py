"""Validation chooses the weights that are kept, ends a run that stalls, and outlives an interruption."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from letters import TASKS, AnyReward, CountLetters, Letters, algorithm

from mini_agentic_rl import Trainer
from mini_agentic_rl.algorithm.loop import measuring
from mini_agentic_rl.algorithm.loop.curriculum import LevelSource, learnability, level_means, levels_of
from mini_agentic_rl.algorithm.loop.measuring import is_due, is_stalled
from mini_agentic_rl.algorithm.loop.state import RunProgress
from mini_agentic_rl.commands import TrainConfig, train_job
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.metrics import MetricsLogger, read_metrics

SMALL = {"tasks_per_step": 1, "samples_per_prompt": 2, "eval_size": 1, "checkpoint_every": 1, "validation_every": 1}


class Notes(MetricsLogger):
    """Keeps what is told, and breaks the run off after a step if it is to."""

    def __init__(self, breaks_after=None):
        self.told = []
        self.breaks_after = breaks_after

    def note(self, message):
        self.told.append(message)

    def log(self, metrics, *, step):
        if step == self.breaks_after:
            raise KeyboardInterrupt


@pytest.fixture
def scores(monkeypatch):
    """Say how many of ten validation tasks are right after each step; the others are measured as they are."""
    right: list[int] = []
    evaluate = measuring.evaluate

    async def scripted(*arguments, **options):
        name, _, step = options["name"].rpartition(" ")
        if name != "validation, step":
            return await evaluate(*arguments, **options)
        correct = right[int(step)]
        return SimpleNamespace(correct=[correct], rollouts=[None] * 10, accuracy=correct / 10)

    monkeypatch.setattr(measuring, "evaluate", scripted)
    return right


def _fit(folder, steps, logger, *, resume=False, **settings):
    trainer = Trainer(
        algorithm=algorithm(total_steps=steps, validation=TASKS[:2], **{**SMALL, **settings}),
        hooks=[AnyReward()],
        n_runners=4,
        output_dir=folder,
        logger=logger,
        resume=resume,
    )
    trainer.fit(Letters(), TASKS, val_dataset=TASKS)
    return trainer.algorithm.summary


def _weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_the_weights_that_were_validated_best_are_the_result(tmp_path, scores):
    scores[:] = [1, 5, 2, 5, 4]
    notes = Notes()
    summary = _fit(tmp_path, 4, notes)
    assert (summary["steps"], summary["best_step"]) == (4, 1)
    assert [one["step"] for one in summary["validation"]] == [0, 1, 2, 3, 4]
    kept = tmp_path / "checkpoints" / "step_1" / "adapter"
    assert _weights(tmp_path / "adapter") == _weights(kept), "of several alike the first"
    assert _weights(tmp_path / "adapter") != _weights(tmp_path / "checkpoints" / "step_3" / "adapter")
    assert "the weights of step 1 are kept, the best of 5 validations (50.0 % of 10 tasks)" in notes.told
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["validation/accuracy"] for row in rows if "validation/accuracy" in row] == [0.1, 0.5, 0.2, 0.5, 0.4]
    assert json.loads((tmp_path / "summary.json").read_text())["best_step"] == 1


def test_a_run_that_stalls_ends_and_says_so(tmp_path, scores):
    scores[:] = [1, 3, 3, 2, 9]
    notes = Notes()
    summary = _fit(tmp_path, 4, notes, patience=2)
    assert (summary["steps"], summary["best_step"]) == (3, 1)
    assert any(
        line.startswith("stopped after step 3 of 4: validation stalled; the weights of step 1") for line in notes.told
    )
    assert [row["name"] for row in summary["accuracy"]] == ["before", "after RL"]


def test_an_interrupted_run_knows_the_best_weights_again(tmp_path, scores):
    scores[:] = [1, 7, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        _fit(tmp_path, 3, Notes(breaks_after=2))
    best = _weights(tmp_path / "checkpoints" / "step_1" / "adapter")
    summary = _fit(tmp_path, 3, Notes(), resume=True)
    assert [one["step"] for one in summary["validation"]] == [0, 1, 2, 3]
    assert _weights(tmp_path / "adapter") == best


def test_without_a_folder_the_last_weights_are_kept_and_that_is_said(scores):
    scores[:] = [5, 1]
    notes = Notes()
    _fit(None, 1, notes)
    assert any("the last weights are kept: the checkpoint" in line for line in notes.told)


def test_the_job_validates_on_tasks_that_it_neither_trains_nor_measures_on(tiny_folder, tmp_path):
    small = {"sft_examples": 0, "total_steps": 1, "eval_size": 1, "tasks_per_step": 1, "samples_per_prompt": 2}
    small |= {"max_new_tokens": 4, "n_runners": 4, "console": False, "validation_size": 2, "patience": 3}
    summary = train_job(TrainConfig(model=tiny_folder, output_dir=tmp_path / "run", **small))
    assert [(one["step"], one["count"]) for one in summary["validation"]] == [(0, 2), (1, 2)]
    (tmp_path / "tasks.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n' * 2)
    with pytest.raises(UserError, match="no tasks in the split val"):
        train_job(
            TrainConfig(model=tiny_folder, output_dir=tmp_path / "b", dataset=str(tmp_path / "tasks.jsonl"), **small)
        )


def test_a_validation_is_due_once_and_stalls_by_patience():
    rows = [{"step": step, "correct": correct, "count": 4} for step, correct in ((0, 2), (2, 3), (4, 3), (6, 1))]
    progress = RunProgress(validation=rows)
    assert progress.best_validation["step"] == 2
    assert [is_stalled(progress, patience) for patience in (1, 2, 3, None)] == [True, True, False, False]
    assert not is_stalled(RunProgress(), 1)
    assert [is_due(step, 9, 2, rows) for step in (6, 7, 8, 9)] == [False, False, True, True]


LEVELS = [{"word": word, "difficulty": 1 + index % 3} for index, word in enumerate("abcdefghijkl")]


def test_levels_that_are_solved_half_of_the_time_come_more_often_and_no_task_twice():
    levels, cursors, drawn = levels_of([*LEVELS, "no level"]), {}, []
    assert levels[-1] == ""
    rates = {"1": 1.0, "2": 0.5, "3": 0.0, "": 1.0}
    for step in range(300):
        source = LevelSource(13, 0, step, 0, rates, 0.1, levels=levels, cursors=cursors)
        drawn += source.draw(1)
        cursors = source.cursors
    share = sum(levels[row] == "2" for row in drawn) / len(drawn)
    assert share == pytest.approx(learnability(0.5, 0.1) / 1.3, abs=0.07)
    second = [row for row in drawn if levels[row] == "2"]
    assert all(len(set(second[begin : begin + 4])) == 4 for begin in range(0, len(second) - 3, 4))
    assert level_means(levels, {0: 1.0, 3: 0.0, 1: 0.25}) == {"1": 0.5, "2": 0.25}


def test_a_run_keeps_what_it_knows_of_the_levels(tmp_path):
    trainer = Trainer(
        algorithm=algorithm(total_steps=2, curriculum="level", tasks_per_step=2, samples_per_prompt=2, eval_size=1),
        hooks=[CountLetters()],
        n_runners=4,
        output_dir=tmp_path,
        logger=MetricsLogger(),
    )
    trainer.fit(Letters(), LEVELS, val_dataset=LEVELS)
    state = json.loads((tmp_path / "checkpoints" / "step_2" / "state.json").read_text())
    assert sum(state["level_draws"].values()) == 4
    assert set(state["pass_rates"]) == set(state["level_draws"]) <= {"1", "2", "3"}
