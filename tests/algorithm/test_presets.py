"""Published variants: what a preset sets, what wins over it, and that each of them runs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from letters import TASKS, Kept, Letters, algorithm
from pydantic import ValidationError

from helpers import group_of_conversations, tiny_policy
from mini_agentic_rl import Hook, MiniGRPO, Trainer
from mini_agentic_rl.algorithm.batch import with_kl_penalty
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.grpo import GRPOObjective, batch_of
from mini_agentic_rl.algorithm.presets import PRESETS
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.policy import LearnerSettings
from mini_agentic_rl.tokens import TokenTree, pack


def _groups(policy, reward):
    """Two tasks, four rollouts of two calls each. The policy's adapter already differs from the reference."""
    return [
        Group(
            str(task),
            [
                Trajectory(f"{task}/{index}", records, reward(index))
                for index, records in enumerate(group_of_conversations(policy, turns=2, seed=task))
            ],
        )
        for task in range(2)
    ]


def _step(policy, settings, groups):
    """The figures of one update, and how far it moved the weights."""

    def job():
        learner = policy.learner(LearnerSettings(max_batch_tokens=60))
        before = [parameter.detach().clone() for parameter in learner.parameters]
        figures = GRPOObjective({"default": learner}, settings).update("default", groups)
        pairs = zip(learner.parameters, before, strict=True)
        return figures, sum(float((now.detach() - then).norm()) for now, then in pairs)

    return policy.run(job)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_value_of_a_preset_is_a_default_that_a_setting_wins_over(preset):
    settings = GRPOSettings(preset=preset)
    assert settings.model_dump().items() >= PRESETS[preset].items()
    assert GRPOSettings(preset=preset, clip_ratio=0.17, clip_ratio_high=None).clip_ratio == 0.17
    assert MiniGRPO(settings=settings, preset="grpo").settings == GRPOSettings()
    assert MiniGRPO(settings=GRPOSettings(clip_ratio=0.17), preset=preset).settings.clip_ratio == 0.17


def test_a_short_wrong_answer_is_suppressed_as_hard_as_each_token_of_a_long_one():
    with tiny_policy() as policy:
        groups = _groups(policy, lambda index: float(index < 2))
        for group in groups:
            group.trajectories[3] = replace(
                group.trajectories[3], records=group.trajectories[3].records[:1], column_R=np.zeros(1, np.int64)
            )
        batch = batch_of(groups, GRPOSettings())
    assert len(set(batch.packed.trajectory_S.tolist())) == 8
    assert np.ptp(batch.inputs.weights_S.numpy()) == 0


@pytest.mark.parametrize("aggregation", ["token", "sequence", "dr_grpo"])
def test_groups_of_equal_rewards_count_in_the_average_though_they_are_not_computed(aggregation):
    settings = GRPOSettings(loss_aggregation=aggregation)
    with tiny_policy() as policy:
        told, silent = _groups(policy, lambda index: float(index < 2))
        silent = replace(silent, trajectories=[replace(one, values_C=np.ones(1)) for one in silent.trajectories])
        alone, beside = (batch_of(groups, settings) for groups in ([told], [told, silent]))
        drawn_again = batch_of([told, silent], GRPOSettings(loss_aggregation=aggregation, dynamic_sampling=True))
    assert beside.packed.token_count == alone.packed.token_count
    np.testing.assert_allclose(2 * beside.inputs.weights_S, alone.inputs.weights_S, rtol=1e-6)
    np.testing.assert_array_equal(drawn_again.inputs.weights_S, alone.inputs.weights_S)


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_takes_steps_that_change_the_policy(preset):
    with tiny_policy() as policy:
        figures, moved = _step(policy, GRPOSettings(preset=preset, epochs_per_batch=2), _groups(policy, float))
    assert moved > 0
    assert figures["grad_norm"] > 0 or figures["clip_fraction"] == pytest.approx(1)  # of the second step
    assert figures["groups/with_signal"] == 2
    assert np.isfinite(list(figures.values())).all()


@pytest.mark.parametrize("preset", ["rloo", "reinforce++"])
def test_a_penalty_in_the_reward_tells_rollouts_of_equal_rewards_apart_and_is_reported(preset):
    with tiny_policy() as policy:
        groups = _groups(policy, lambda _: 1.0)
        without, unmoved = _step(policy, GRPOSettings(preset=preset), groups)
        figures, moved = _step(policy, GRPOSettings(preset=preset, kl_coef=0.1), groups)
        in_loss, _ = _step(policy, GRPOSettings(preset=preset, kl_coef=0.1, kl_in_reward=False), groups)
    assert unmoved == 0
    assert "kl" not in without
    assert moved > 0
    assert abs(figures["kl"]) > 1e-4
    assert in_loss.get("kl", 1.0) != figures["kl"]


def test_what_a_penalty_takes_off_is_the_log_ratio_of_the_rollout():
    with tiny_policy() as policy:
        groups = _groups(policy, float)
        learner = policy.run(lambda: policy.learner(LearnerSettings()))
        penalised, mean = policy.run(lambda: with_kl_penalty(groups, learner, 0.5))
        terms = 0
        for group, lowered in zip(groups, penalised, strict=True):
            for trajectory, less in zip(group.trajectories, lowered.trajectories, strict=True):
                tree = TokenTree()
                for record in trajectory.records:
                    tree.insert(record)
                packed = pack([tree])
                reference = policy.run(lambda packed=packed: learner.logprobs(packed, reference=True)).numpy()
                ratio = float((packed.behaviour_logprobs_S - reference).sum())
                assert less.values_C == pytest.approx(trajectory.reward - 0.5 * ratio, abs=1e-3)
                mean -= ratio / (8 * 12)
                terms += packed.term_count
    assert terms == 8 * 12
    assert mean == pytest.approx(0, abs=1e-4)


def test_one_rollout_a_task_is_enough_without_a_baseline_and_an_error_with_one():
    with tiny_policy() as policy:
        alone = [Group(str(n), [t]) for n, t in enumerate(_groups(policy, float)[0].trajectories)]
        settings = GRPOSettings(preset="reinforce++", samples_per_prompt=1)
        figures, moved = _step(policy, settings, alone)
        assert moved > 0
        assert figures["groups/count"] == 4
    with pytest.raises(ValidationError, match="samples_per_prompt=1` leaves nothing to compare"):
        GRPOSettings(samples_per_prompt=1)


def test_steps_draw_tasks_in_place_of_those_without_signal_by_a_curriculum_that_is_kept(tmp_path):
    class Sometimes(Hook):
        """Rewards of two tasks differ, those of the others are equal."""

        async def on_rollout_end(self, *, rollout):
            return float(rollout.input["word"] in ("hi", "so") and rollout.metadata["sampling_seed"] % 2)

    kept = Kept()
    trained = algorithm(
        total_steps=2,
        tasks_per_step=2,
        samples_per_prompt=6,
        max_new_tokens=2,
        dynamic_sampling=True,
        max_sampling_rounds=16,
        curriculum="pass_rate",
    )
    trainer = Trainer(algorithm=trained, hooks=[Sometimes()], n_runners=32, logger=kept, output_dir=tmp_path)
    trainer.fit(Letters(), TASKS)
    rows = [row for row in kept.rows if "groups/count" in row]
    assert [row["groups/with_signal"] for row in rows] == [2, 2]
    assert all(1 <= row["sampling/rounds"] < 16 for row in rows)
    state = json.loads((tmp_path / "checkpoints" / "step_2" / "state.json").read_text())
    assert state["extra_tasks"] == sum(int(row["groups/count"]) for row in rows) - 4 > 0
    assert {row for row, rate in state["pass_rates"].items() if rate > 0} == {"0", "7"}
    assert trained.progress.pass_rates == state["pass_rates"]
