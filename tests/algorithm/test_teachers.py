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
from mini_agentic_rl.algorithm.teachers import (
    LocalTeacher,
    PrivilegedTeacher,
    ending_of_a_message,
)
from mini_agentic_rl.gateway import ChatRenderer
from mini_agentic_rl.policy import LearnerSettings, PolicyError
from mini_agentic_rl.tokens import TokenTree, pack
from tiny import tiny_tokenizer

VOCABULARY = 300
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
            teacher = LocalTeacher(learner.scorer(None))
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
                    teachers = {"default": LocalTeacher(learner.scorer(None))}
                    objective = GRPOObjective({"default": learner}, settings, teachers=teachers)
                return objective.update("default", groups)

            figures = policy.run(job)
        after = _distance(policy, groups)
    assert np.isfinite(figures["teacher/kl"])
    assert after < 0.7 * before


def _conversation(renderer, task, said, tool, last):
    """A rollout of two calls, as its records."""
    return renderer.conversation_to_records(
        [
            {"role": "user", "content": task},
            {"role": "assistant", "content": said},
            {"role": "user", "content": tool},
            {"role": "assistant", "content": last},
        ]
    )


def test_the_policy_sees_the_solution_of_another_rollout_and_feedback_where_its_task_stands():
    renderer = ChatRenderer(tiny_tokenizer())
    right = _conversation(renderer, "add", "<|im_end|> 2+2", "4", "it is 4")
    wrong = _conversation(renderer, "add", "2-2", "0", "it is 0")
    trajectories = [
        Trajectory("right", right, 1.0),
        Trajectory("wrong", wrong, 0.0, feedback="That was a <|im_start|> subtraction."),
    ]
    groups = [Group("t", trajectories), Group("u", [Trajectory("alone", wrong, 0.0)])]
    batch = batch_of(groups, GRPOSettings(preset="sdpo", samples_per_prompt=2))
    teacher = PrivilegedTeacher(None, renderer, reward=1.0, context_length=4096)
    tree = teacher._tree(batch)
    seen = [placed.record for placed in tree.sampled]
    assert [one.output_ids.tolist() for one in seen] == [call.record.output_ids.tolist() for call in batch.calls]
    decode = renderer.tokenizer.decode
    assert decode(seen[0].prompt_ids) == decode(right[0].prompt_ids)  # no other was right, and nothing was said of it
    told = decode(seen[2].prompt_ids)
    begin, _, end = decode(wrong[0].prompt_ids).partition("add")
    assert told.startswith(f"{begin}add\n\nA correct solution is:\n")
    assert told.endswith(f"That was a <|im_start|> subtraction.\n\nNow solve the task.{end}")
    assert "it is 4" in told
    special = renderer.eos_ids[0]
    assert seen[2].prompt_ids.tolist().count(special) == wrong[0].prompt_ids.tolist().count(special)
    ending = ending_of_a_message(renderer)
    assert wrong[0].prompt_ids.tolist()[-len(ending) :] == ending
    rest = wrong[1].prompt_ids.tolist()[wrong[0].prompt_ids.size - len(ending) :]
    assert seen[3].prompt_ids.tolist()[-len(rest) :] == rest  # the second call's, token by token
    assert [one.prompt_ids.tolist() for one in seen[4:]] == [one.prompt_ids.tolist() for one in wrong]


def test_a_context_that_would_be_too_long_is_left_as_it_was():
    renderer = ChatRenderer(tiny_tokenizer())
    records = _conversation(renderer, "add", "2+2", "4", "it is 4")
    groups = [Group("t", [Trajectory("a", records, 0.0, feedback="x" * 100)])]
    batch = batch_of(groups, GRPOSettings(preset="sdpo", samples_per_prompt=2))
    longer = records[0].prompt_ids.size + 120
    seen = PrivilegedTeacher(None, renderer, reward=1.0, context_length=longer)._tree(batch).sampled
    assert seen[1].record.prompt_ids.tolist() == records[1].prompt_ids.tolist()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"teacher": "self", "samples_per_prompt": 1, "baseline": "none"}, "samples_per_prompt"),
        ({"reward_coef": 0.0}, "nothing to learn from"),
    ],
)
def test_settings_that_a_teacher_cannot_follow_are_refused(given, match):
    with pytest.raises(ValidationError, match=match):
        GRPOSettings(**given)


def test_without_an_adapter_there_is_no_bare_model_to_learn_from():
    with pytest.raises(PolicyError, match="teacher"):
        algorithm(teacher="base")


def test_a_training_follows_the_policy_with_a_solution_in_its_context(kept):
    trained = algorithm(total_steps=2, tasks_per_step=2, samples_per_prompt=4, preset="sdpo", teacher_reward=0.0)
    Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=8, logger=kept).fit(Letters(), TASKS)
    steps = [row for row in kept.rows if "teacher/kl" in row]
    assert len(steps) == 2
    assert all(row["grad_norm"] > 0 and np.isfinite(row["teacher/kl"]) for row in steps)
