"""Distillation in the policy's own rollouts: what each kind of teacher says, and what is learnt from it."""

from __future__ import annotations

import numpy as np
import pytest
from letters import TASKS, CountLetters, Letters, algorithm
from pydantic import ValidationError

from helpers import group_of_conversations, tiny_policy
from mini_agentic_rl import Trainer
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.grpo import GRPOObjective, batch_of
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.commands.train import make_algorithm
from mini_agentic_rl.commands.train_config import TrainConfig
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import DEFAULT_ADAPTER, LearnerSettings, LoraSettings, PolicyError, load_model
from mini_agentic_rl.policy.load import save_weights
from mini_agentic_rl.tokens import TokenTree, pack
from tiny import tiny_model, tiny_tokenizer

DISTIL = {"teacher": "base", "reward_coef": 0.0, "loss_aggregation": "token"}


def _groups(policy, temperature=0.9):
    conversations = group_of_conversations(policy, rollouts=3, turns=2)
    return [Group("t", [Trajectory(str(i), records, 1.0) for i, records in enumerate(conversations)])]


def _alone(learner, record, adapter):
    """Log-probabilities of one call's tokens, computed by itself."""
    tree = TokenTree()
    tree.insert(record)
    return learner.scorer(adapter).logprobs(pack([tree])).double().numpy()


def test_the_sampled_estimate_is_the_log_ratio_to_the_teacher_token_by_token():
    with tiny_policy() as policy:
        groups = _groups(policy)

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
                    for token, value in enumerate(_alone(learner, record, None)):
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
        before = _distance(policy, _groups(policy))
        for _ in range(6):
            groups = _groups(policy)

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


def test_a_teacher_is_the_bare_model_an_adapter_or_another_model(tmp_path, kept):
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
        Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=4, logger=kept).fit(Letters(), TASKS[:1])
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
        Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=4).fit(Letters(), TASKS[:1])


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
