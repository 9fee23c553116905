"""A run that learns nothing says so, and what to change."""

from __future__ import annotations

from mini_agentic_rl.algorithm.loop.progress import IdleSteps

ALIKE = {"groups/with_signal": 0.0, "reward/mean": 0.0}


def test_the_first_step_without_a_difference_is_told_and_all_are_counted():
    idle = IdleSteps()
    assert idle.after_step({**ALIKE, "loss": 0.1}) is None
    assert idle.at_the_end() is None
    said = idle.after_step({**ALIKE, "rollout/truncated": 1.0})
    assert said is not None
    assert "same reward (0)" in said
    assert "100% of them ended at `max_new_tokens`" in said
    assert idle.after_step(ALIKE) is None
    assert "2 of 3 steps" in str(idle.at_the_end())


def test_a_step_of_several_adapters_is_not_idle_where_one_of_them_learnt():
    assert IdleSteps().after_step({**ALIKE, "writer/loss": 0.2}) is None


def test_a_step_without_any_rollout_has_other_reasons():
    assert IdleSteps().after_step({"groups/count": 2.0, "rollout/failed": 8.0}) is None
