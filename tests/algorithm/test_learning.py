"""The whole loop on a tiny model: endpoint, agent, hook, store, trees, update."""

from __future__ import annotations

import asyncio

import pytest
from letters import TASKS, AnyReward, CountLetters, Kept, Letters, algorithm

from mini_agentic_rl import InMemoryLightningStore, LitAgent, Trainer
from mini_agentic_rl.algorithm import sampling
from mini_agentic_rl.errors import RunFailedError
from mini_agentic_rl.policy import LearnerSettings


def test_a_tiny_model_learns_to_the_threshold(tmp_path):
    kept = Kept()
    trained = algorithm(total_steps=9, learner=LearnerSettings(learning_rate=6e-3))
    Trainer(
        algorithm=trained,
        hooks=[CountLetters()],
        store=InMemoryLightningStore(),
        n_runners=32,
        output_dir=tmp_path,
        logger=kept,
    ).fit(Letters(), TASKS, val_dataset=TASKS)
    before, after = trained.summary["accuracy"]
    assert (before["name"], before["count"], before["correct"]) == ("before", 8, 0)
    assert (after["name"], after["count"]) == ("after RL", 8)
    assert after["correct"] >= 6
    steps = [row for row in kept.rows if "reward/mean" in row]
    assert len(steps) == 9
    assert max(row.get("mismatch/mean_abs", 0.0) for row in steps) < 1e-4
    assert trained.summary["untrained"] == {}


def test_a_step_that_takes_long_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr(sampling, "SECONDS_BETWEEN_NOTES", 0.0)
    kept = Kept()
    trained = algorithm(total_steps=2, tasks_per_step=2, samples_per_prompt=2)
    Trainer(algorithm=trained, hooks=[AnyReward()], n_runners=1, logger=kept).fit(Letters(), TASKS)
    assert {"step 1: 4 of 4 rollouts", "step 2: 4 of 4 rollouts"} <= set(kept.notes)


async def test_an_interrupted_run_without_a_folder_says_that_nothing_is_kept():
    kept = Kept()
    trainer = Trainer(algorithm=algorithm(total_steps=500), hooks=[AnyReward()], n_runners=32, logger=kept)
    run = asyncio.create_task(trainer.train(Letters(), TASKS))
    while not kept.rows:
        await asyncio.sleep(0.02)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert [note for note in kept.notes if "interrupted" in note] == [
        "interrupted: nothing is kept, because the trainer has no output_dir"
    ]


class Quiet(LitAgent):
    """Calls the model for some tasks only, and raises for another."""

    def rollout(self, task):
        if task["word"] == "go":
            raise RuntimeError("no way")
        return 1.0


def test_rollouts_that_give_nothing_say_why():
    store = InMemoryLightningStore()
    trained = algorithm(total_steps=1, tasks_per_step=2, samples_per_prompt=2, seed=3)
    with pytest.raises(RunFailedError, match="all 4 rollouts of the training failed"):
        Trainer(algorithm=trained, store=store, n_runners=4).fit(Quiet(), TASKS[:2])
    reasons = trained.summary["untrained"]
    assert sum(reasons.values()) == 4
    assert any("no LLM call recorded" in reason for reason in reasons)
    assert any("no way" in reason for reason in reasons)
    ended = asyncio.run(store.query_rollouts())
    assert sorted({rollout.status for rollout in ended}) == ["failed", "succeeded"]


def test_nothing_to_train_on_is_said_at_once():
    with pytest.raises(ValueError, match="train_dataset is empty"):
        Trainer(algorithm=algorithm(), n_runners=1).fit(Letters(), [])
