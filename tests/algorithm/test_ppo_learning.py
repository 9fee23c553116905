"""PPO in the whole loop on a tiny model, and resumed from a checkpoint."""

from __future__ import annotations

import pytest
from letters import TASKS, CountLetters, Kept, Letters, ppo_algorithm, weights_digest

from mini_agentic_rl import MiniPPO, Trainer
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.policy import LearnerSettings, PolicyError
from mini_agentic_rl.trainer import RunFolder


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


def test_a_run_gone_on_with_ends_with_the_weights_of_an_unbroken_one(tmp_path):
    def run(folder, steps, resume=False):
        options = {"tasks_per_step": 4, "checkpoint_every": 1, "deterministic": True}
        Trainer(
            algorithm=ppo_algorithm(total_steps=steps, **options),
            hooks=[CountLetters()],
            n_runners=4,
            output_dir=RunFolder(folder),  # kept by nobody: a run is resumed with more steps
            logger=MetricsLogger(),
            resume=resume,
        ).fit(Letters(), TASKS)
        return weights_digest(folder)

    unbroken = run(tmp_path / "unbroken", 3)
    run(tmp_path / "broken", 2)
    assert run(tmp_path / "broken", 3, resume=True) == unbroken


def test_another_backend_is_refused():
    with pytest.raises(PolicyError, match="backend: 'trl' is MiniGRPO's"):
        MiniPPO("embedded", backend="trl")
