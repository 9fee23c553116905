"""Validation chooses the weights that are kept, ends a run that stalls, and outlives an interruption."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from letters import TASKS, AnyReward, Kept, Letters, algorithm, fit

from mini_agentic_rl.algorithm import measure
from mini_agentic_rl.commands import TrainConfig, train_job
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.metrics import read_metrics

SMALL = {"tasks_per_step": 1, "samples_per_prompt": 2, "eval_size": 1, "checkpoint_every": 1, "validation_every": 1}


class Breaking(Kept):
    """Breaks the run off after a step."""

    def __init__(self, breaks_after):
        super().__init__()
        self.breaks_after = breaks_after

    def log(self, metrics, *, step):
        if step == self.breaks_after:
            raise KeyboardInterrupt


@pytest.fixture
def scores(monkeypatch):
    """Say how many of ten validation tasks are right after each step; the others are measured as they are."""
    right: list[int] = []
    evaluate = measure.evaluate

    async def scripted(*arguments, **options):
        name, _, step = options["name"].rpartition(" ")
        if name != "validation, step":
            return await evaluate(*arguments, **options)
        correct = right[int(step)]
        return SimpleNamespace(correct=[correct], rollouts=[None] * 10, accuracy=correct / 10)

    monkeypatch.setattr(measure, "evaluate", scripted)
    return right


def _fit(folder, steps, logger, *, resume=False, **settings):
    trained = algorithm(total_steps=steps, validation=TASKS[:2], **{**SMALL, **settings})
    options = {"output_dir": folder, "logger": logger, "resume": resume, "val_dataset": TASKS}
    fit(trained, Letters(), TASKS, [AnyReward()], **options)
    return trained.summary


def _weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_the_weights_that_were_validated_best_are_the_result(tmp_path, scores):
    scores[:] = [1, 5, 2, 5, 4]
    notes = Kept()
    summary = _fit(tmp_path, 4, notes)
    assert (summary["steps"], summary["best_step"]) == (4, 1)
    assert [one["step"] for one in summary["validation"]] == [0, 1, 2, 3, 4]
    kept = tmp_path / "checkpoints" / "step_1" / "adapter"
    assert _weights(tmp_path / "adapter") == _weights(kept), "of several alike the first"
    assert _weights(tmp_path / "adapter") != _weights(tmp_path / "checkpoints" / "step_3" / "adapter")
    assert "the weights of step 1 are kept, the best of 5 validations (50.0 % of 10 tasks)" in notes.notes
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["validation/accuracy"] for row in rows if "validation/accuracy" in row] == [0.1, 0.5, 0.2, 0.5, 0.4]
    assert json.loads((tmp_path / "summary.json").read_text())["best_step"] == 1


def test_a_run_that_stalls_ends_and_says_so(tmp_path, scores):
    scores[:] = [1, 3, 3, 2, 9]
    notes = Kept()
    summary = _fit(tmp_path, 4, notes, patience=2)
    assert (summary["steps"], summary["best_step"]) == (3, 1)
    assert any(
        line.startswith("stopped after step 3 of 4: validation stalled; the weights of step 1") for line in notes.notes
    )
    assert [row["name"] for row in summary["accuracy"]] == ["before", "after RL"]


def test_an_interrupted_run_knows_the_best_weights_again(tmp_path, scores):
    scores[:] = [1, 7, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        _fit(tmp_path, 3, Breaking(breaks_after=2))
    best = _weights(tmp_path / "checkpoints" / "step_1" / "adapter")
    summary = _fit(tmp_path, 3, Kept(), resume=True)
    assert [one["step"] for one in summary["validation"]] == [0, 1, 2, 3]
    assert _weights(tmp_path / "adapter") == best


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
