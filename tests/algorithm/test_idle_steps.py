"""A run that learns nothing says so once for each cause, and what helps against that one."""

from __future__ import annotations

import pytest

from mini_agentic_rl.algorithm.sampling import IdleSteps, LostSteps, SampledStep
from mini_agentic_rl.errors import RunFailedError

UNSOLVED = {"groups/with_signal": 0.0, "reward/mean": 0.0, "reward/std": 0.0}


def _lost(reason: str, count: int = 12) -> SampledStep:
    return SampledStep({}, (), {reason: count}, count, 0, {}, {})


@pytest.mark.parametrize(
    ("mean", "std", "seen", "advice"),
    [
        (1.0, 0.0, "all rewards are 1:", "take harder tasks"),
        (0.0, 0.0, "all rewards are 0:", "take easier tasks, imitate more examples first"),
        (0.5, 0.0, "all rewards are 0.5:", "whether the reward tells answers apart"),
        (0.5, 0.5, "the same reward, though tasks differ (mean 0.5)", "solved now and then"),
    ],
)
def test_the_advice_is_for_the_cause(mean, std, seen, advice):
    idle = IdleSteps()
    said = str(idle.after_step({"reward/mean": mean, "reward/std": std}))
    assert seen in said
    assert advice in said
    assert ("easier" in said) <= (mean < 1)
    assert advice in str(idle.at_the_end())


def test_a_step_of_a_resumed_run_is_told_by_its_number_in_the_whole_run():
    assert str(IdleSteps(done=7).after_step(UNSOLVED)).startswith("nothing to learn from in step 8: ")


def test_each_cause_is_told_once_and_all_are_counted():
    idle = IdleSteps()
    assert idle.after_step({**UNSOLVED, "loss": 0.1}) is None
    assert idle.at_the_end() is None
    said = str(idle.after_step({**UNSOLVED, "rollout/truncated": 1.0}))
    assert "100 % of the rollouts ended at `max_new_tokens`" in said
    assert idle.after_step(UNSOLVED) is None
    assert "all rewards are 1" in str(idle.after_step({**UNSOLVED, "reward/mean": 1.0}))
    assert "3 of 4 steps had nothing to learn from (in 2 for one cause): take easier tasks" in str(idle.at_the_end())


def test_a_step_of_several_adapters_is_not_idle_where_one_of_them_learnt():
    assert IdleSteps().after_step({**UNSOLVED, "writer/loss": 0.2}) is None


def test_a_step_without_any_rollout_has_other_reasons():
    assert IdleSteps().after_step({"groups/count": 2.0, "rollout/failed": 8.0}) is None


def test_a_run_that_only_loses_rollouts_ends_by_the_most_frequent_reason():
    lost = LostSteps()
    lost.after_step(_lost("port 1 is closed"))
    lost.after_step(SampledStep({}, (), {"port 2 is closed": 11}, 12, 1, {}, {}))
    lost.after_step(_lost("no reward", 6))
    lost.after_step(_lost("port 3 is closed"))
    with pytest.raises(
        RunFailedError, match=r"all 30 rollouts of the last 3 steps failed: port 3 is closed \(24 times"
    ):
        lost.after_step(_lost("port 4 is closed"))


def test_a_few_lost_rollouts_end_nothing():
    lost = LostSteps()
    for _ in range(7):
        lost.after_step(_lost("no reward", 3))
