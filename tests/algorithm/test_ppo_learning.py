"""PPO in the whole loop on a tiny model."""

from __future__ import annotations

import pytest
from letters import TASKS, CountLetters, Kept, Letters, ppo_algorithm

from mini_agentic_rl import MiniPPO, Trainer
from mini_agentic_rl.policy import LearnerSettings, PolicyError


def test_a_tiny_model_learns_to_the_threshold_from_one_rollout_of_each_task():
    kept = Kept()
    trained = ppo_algorithm(total_steps=9, tasks_per_step=32, learner=LearnerSettings(learning_rate=6e-3))
    Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=32, logger=kept).fit(
        Letters(), TASKS, val_dataset=TASKS
    )
    before, after = trained.summary["accuracy"]
    assert (before["correct"], after["count"]) == (0, 8)
    assert after["correct"] >= 6
    steps = [row for row in kept.rows if "reward/mean" in row]
    assert len(steps) == 9
    assert max(row.get("mismatch/mean_abs", 0.0) for row in steps) < 1e-4
    assert steps[0]["value/mean"] == 0
    assert steps[-1]["value/mean"] == pytest.approx(steps[-1]["value/return_mean"], abs=0.3)


def test_another_backend_is_refused():
    with pytest.raises(PolicyError, match="backend: 'trl' is MiniGRPO's"):
        MiniPPO("embedded", backend="trl")
