"""Updates of GRPO: what each preset sets and does, and distillation in the policy's own rollouts."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from letters import TASKS, CountLetters, Letters, algorithm, fit
from pydantic import ValidationError

from helpers import group_of_conversations, pack_rollouts, tiny_policy
from mini_agentic_rl import Hook, MiniGRPO
from mini_agentic_rl.algorithm.batch import with_kl_penalty
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.grpo import GRPOObjective, batch_of
from mini_agentic_rl.algorithm.presets import PRESETS
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.commands.train import make_algorithm
from mini_agentic_rl.commands.train_config import TrainConfig
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import DEFAULT_ADAPTER, LearnerSettings, LoraSettings, PolicyError, load_model
from mini_agentic_rl.policy.load import save_weights
from tiny import tiny_model, tiny_tokenizer


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
                packed = pack_rollouts([trajectory.records])
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

    trained = algorithm(
        total_steps=2,
        tasks_per_step=2,
        samples_per_prompt=6,
        max_new_tokens=2,
        dynamic_sampling=True,
        max_sampling_rounds=16,
        curriculum="pass_rate",
    )
    kept = fit(trained, Letters(), TASKS, [Sometimes()], n_runners=32, output_dir=tmp_path)
    rows = [row for row in kept.rows if "groups/count" in row]
    assert [row["groups/with_signal"] for row in rows] == [2, 2]
    assert all(1 <= row["sampling/rounds"] < 16 for row in rows)
    state = json.loads((tmp_path / "checkpoints" / "step_2" / "state.json").read_text())
    assert state["extra_tasks"] == sum(int(row["groups/count"]) for row in rows) - 4 > 0
    assert {row for row, rate in state["pass_rates"].items() if rate > 0} == {"0", "7"}
    assert trained.progress.pass_rates == state["pass_rates"]


DISTIL = {"teacher": "base", "reward_coef": 0.0, "loss_aggregation": "token"}


def _one_group(policy):
    conversations = group_of_conversations(policy, rollouts=3, turns=2)
    return [Group("t", [Trajectory(str(i), records, 1.0) for i, records in enumerate(conversations)])]


def test_the_sampled_estimate_is_the_log_ratio_to_the_teacher_token_by_token():
    with tiny_policy() as policy:
        groups = _one_group(policy)

        def job():
            learner = policy.learner(LearnerSettings(max_batch_tokens=60))
            seen = []
            forward = learner.forward_backward

            def watched(packed, loss, inputs, **options):
                seen.append((packed, inputs.advantages_S.numpy()))
                return forward(packed, loss, inputs, **options)

            learner.forward_backward = watched
            settings = GRPOSettings(**{**DISTIL, "teacher_coef": 0.5, "echo_coef": 0.1})
            teacher = learner.scorer(None)
            figures = GRPOObjective({"default": learner}, settings, teachers={"default": teacher}).update(
                "default", groups
            )
            ((packed, advantages),) = seen
            expected, distances = [], []
            for trajectory in groups[0].trajectories:
                for record in trajectory.records:
                    alone = teacher.logprobs(pack_rollouts([[record]])).double()
                    for token, value in enumerate(alone.tolist()):
                        distances.append(float(record.logprobs[token]) - value)
                        expected.append(-0.5 * distances[-1])
            return figures, packed, advantages, expected, distances

        figures, packed, advantages, expected, distances = policy.run(job)
    np.testing.assert_allclose(advantages[: len(expected)], expected, rtol=1e-3, atol=1e-5)
    assert not advantages[len(expected) :].any()  # what the environment said has no teacher
    assert packed.term_count > len(expected)
    assert figures["teacher/kl"] == pytest.approx(sum(distances) / len(distances), rel=1e-3)
    assert figures["grad_norm"] > 0


def _distance(policy, groups):
    """The mean divergence from the bare model, over the whole vocabulary, in the states of some rollouts."""
    batch = batch_of(groups, GRPOSettings(**DISTIL))

    def job():
        learner = policy.learner(LearnerSettings())
        own, base = (learner.scorer(adapter).likeliest(batch.packed, 0).logprobs_SK for adapter in ("default", None))
        return float((own.exp() * (own - base)).sum(-1).mean())

    return policy.run(job)


@pytest.mark.parametrize("distillation", ["sampled", "top_k"])
def test_a_policy_comes_nearer_to_its_teacher_without_any_reward(distillation):
    with tiny_policy() as policy:
        objective = None
        before = _distance(policy, _one_group(policy))
        for _ in range(6):
            groups = _one_group(policy)

            def job(groups=groups):
                nonlocal objective
                if objective is None:
                    learner = policy.learner(LearnerSettings(learning_rate=2e-2))
                    settings = GRPOSettings(**DISTIL, distillation=distillation, teacher_top_k=8, max_update_kl=0)
                    teachers = {"default": learner.scorer(None)}
                    objective = GRPOObjective({"default": learner}, settings, teachers=teachers)
                return objective.update("default", groups)

            figures = policy.run(job)
        after = _distance(policy, groups)
    assert np.isfinite(figures["teacher/kl"])
    assert after < 0.7 * before


def test_without_an_adapter_there_is_no_bare_model_to_learn_from():
    with pytest.raises(PolicyError, match="teacher"):
        algorithm(teacher="base")


SIZES = {"total_steps": 1, "tasks_per_step": 1, "samples_per_prompt": 4, "reward_coef": 0.0, "lora": LoraSettings(r=4)}


def test_a_teacher_is_the_bare_model_an_adapter_or_another_model(tmp_path):
    tokenizer = tiny_tokenizer()
    adapted = load_model(tiny_model(len(tokenizer)), lora=LoraSettings(r=2))
    for name, parameter in adapted.base.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.3)
    save_weights(adapted, tmp_path / "adapter", DEFAULT_ADAPTER)
    tiny_model(len(tokenizer), seed=5, layers=1).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    distances = []
    for teacher in ("base", str(tmp_path / "adapter"), str(tmp_path / "other")):
        trained = algorithm(**SIZES, teacher=teacher)
        kept = fit(trained, Letters(), TASKS[:1], [CountLetters()])
        distances.append(kept.rows[-1]["teacher/kl"])
    bare, adapter, other = distances
    assert bare == pytest.approx(0, abs=1e-4)  # a new adapter changes nothing yet
    assert abs(adapter) > 1e-3
    assert abs(other) > 1e-3


def test_a_teacher_with_other_tokens_is_refused(tmp_path):
    tokenizer = tiny_tokenizer()
    tiny_model(len(tokenizer)).save_pretrained(tmp_path / "other")
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(tmp_path / "other")
    trained = algorithm(**SIZES, teacher=str(tmp_path / "other"))
    with pytest.raises(UserError, match="another tokenizer"):
        fit(trained, Letters(), TASKS[:1], [CountLetters()])


def test_a_teacher_that_cannot_be_loaded_is_an_error_that_names_the_setting(tmp_path):
    (tmp_path / "empty").mkdir()
    trained = algorithm(**SIZES, teacher=str(tmp_path / "empty"))
    with pytest.raises(UserError, match="no model in the folder") as caught:
        fit(trained, Letters(), TASKS[:1], [CountLetters()])
    assert caught.value.setting == "teacher"


def test_the_command_takes_all_of_it_by_name():
    given = TrainConfig(
        separate_rewards="correct,format",
        separate_reward_weights="1,0.5",
        advantage_normalization="batch",
        teacher="base",
        distillation="top_k",
        echo_coef=0.05,
    )
    settings = make_algorithm(given).settings
    assert (settings.separate_rewards, settings.separate_reward_weights) == (["correct", "format"], [1.0, 0.5])
    assert (settings.teacher, settings.distillation, settings.echo_coef) == ("base", "top_k", 0.05)
    with pytest.raises(ValidationError, match="`teacher` is not PPO's"):
        TrainConfig(algorithm="ppo", teacher="base")


def test_something_has_to_be_learnt_from():
    with pytest.raises(ValidationError, match="nothing to learn from"):
        GRPOSettings(reward_coef=0.0)
