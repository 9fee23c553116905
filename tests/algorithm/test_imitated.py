"""What a step imitates beside its policy gradient: observations (ECHO) and demonstrations, against loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from letters import TASKS, CountLetters, Letters, algorithm

from helpers import group_of_conversations, tiny_policy
from mini_agentic_rl import Trainer
from mini_agentic_rl.algorithm.batch import Imitated
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.grpo import GRPOObjective
from mini_agentic_rl.algorithm.settings import GRPOSettings, WarmStart, WarmStartSettings
from mini_agentic_rl.algorithm.sft import observed
from mini_agentic_rl.policy import LearnerSettings, PolicyError
from mini_agentic_rl.tokens import CompletionRecord, TokenTree, pack


def _record(prompt, output):
    return CompletionRecord(np.array(prompt), np.array(output), np.zeros(len(output), np.float32))


def _groups(policy, reward=float, rollouts=3):
    conversations = group_of_conversations(policy, rollouts=rollouts, turns=3)
    return [Group("t", [Trajectory(str(i), records, reward(i)) for i, records in enumerate(conversations)])]


def test_an_observation_is_what_stands_between_two_calls_that_continue_each_other():
    first = _record([1, 2], [3, 4])
    second = _record([1, 2, 3, 4, 5, 6], [7])
    anew = _record([9, 2, 3, 4], [8])
    third = _record([1, 2, 3, 4, 5, 6, 7, 10], [11])
    again = _record([1, 2, 3, 4, 5, 6, 7, 10], [12])  # another choice of the same request
    found = [
        (one.prompt_ids.tolist(), one.output_ids.tolist()) for one in observed([first, second, anew, third, again])
    ]
    assert found == [([1, 2, 3, 4], [5, 6]), ([1, 2, 3, 4, 5, 6, 7], [10])]


def _gradients(policy, settings, groups, **sources):
    """The figures of one update, and the gradient it stepped along."""

    def job():
        learner = policy.learner(LearnerSettings(max_batch_tokens=50, max_grad_norm=1e9, learning_rate=1e-9))
        kept = []
        step = learner.optim_step
        learner.optim_step = lambda: kept.extend(p.grad.clone() for p in learner.parameters) or step()
        figures = GRPOObjective({"default": learner}, settings, **sources).update("default", groups)
        return figures, kept

    return policy.run(job)


def _nll(policy, weighed):
    """The gradient of a sum of -weight log pi over (prompt, outputs, weight), computed record by record."""

    def job():
        learner = policy.learner(LearnerSettings())
        total = 0.0
        for prompt, output, weight in weighed:
            tree = TokenTree()
            tree.insert(_record(prompt, output))

            def loss(inputs, weight=weight):
                from mini_agentic_rl.policy import LossOutputs

                return LossOutputs(-weight * inputs.logprobs_S.sum())

            total += learner.forward_backward(pack([tree]), loss)["loss"]
        return total, [p.grad.clone() for p in learner.parameters]

    return policy.run(job)


@pytest.mark.parametrize("preset", ["grpo", "gspo", "reinforce++"])
def test_echo_adds_the_cross_entropy_of_what_the_environment_said(preset):
    """Equal rewards: the policy gradient says nothing, so the whole gradient is that of the observations."""
    coef = 0.3
    with tiny_policy() as policy:
        groups = _groups(policy, lambda _: 1.0)
        figures, found = _gradients(policy, GRPOSettings(preset=preset, echo_coef=coef), groups)
        weighed, tokens = [], 0
        for trajectory in groups[0].trajectories:
            first, second, third = trajectory.records
            said = []
            for before, after in ((first, second), (second, third)):
                context = [*before.prompt_ids.tolist(), *before.output_ids.tolist()]
                said.append((context, after.prompt_ids.tolist()[len(context) :]))
            size = sum(len(words) for _, words in said)
            tokens += size
            weighed += [(context, words, coef / (3 * size)) for context, words in said]
        total, expected = _nll(policy, weighed)
    assert tokens == 3 * 2 * 5
    assert figures["echo/nll"] == pytest.approx(total / coef, rel=1e-4)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
    assert all(math.isfinite(value) for value in figures.values())


def test_demonstrations_weigh_by_tokens_and_leave_the_policy_gradient_as_it_is():
    class Source:
        def draw(self, step):
            records = [_record([5, 6, 7], [8, 9]), _record([5, 6, 1], [2])]
            return [Imitated(record, 0.5 / 3, "sft") for record in records]

    with tiny_policy() as policy:
        groups = _groups(policy)
        plain, without = _gradients(policy, GRPOSettings(), groups)
        settings = GRPOSettings(sft_coef=0.5)
        figures, found = _gradients(policy, settings, groups, demonstrations={"default": Source()})
        total, more = _nll(policy, [([5, 6, 7], [8, 9], 0.5 / 3), ([5, 6, 1], [2], 0.5 / 3)])
    assert figures["sft/nll"] == pytest.approx(total / 0.5, rel=1e-4)
    for ours, policy_gradient, imitation in zip(found, without, more, strict=True):
        torch.testing.assert_close(ours, policy_gradient + imitation, rtol=1e-3, atol=1e-6)
    for name in ("entropy", "mismatch/mean_abs", "clip_fraction"):  # of the policy's own terms alone
        assert figures[name] == pytest.approx(plain[name], rel=1e-3, abs=1e-6)


def test_a_training_imitates_a_few_demonstrations_in_each_step(kept):
    start = WarmStart(
        lambda task: [{"role": "user", "content": task["word"]}, {"role": "assistant", "content": "aaaa"}],
        settings=WarmStartSettings(examples=0),
    )
    trained = algorithm(total_steps=12, tasks_per_step=2, samples_per_prompt=4, sft_coef=1.0, warm_start=start)
    Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=8, logger=kept).fit(Letters(), TASKS)
    losses = [row["sft/nll"] for row in kept.rows if "sft/nll" in row]
    assert len(losses) == 12
    assert losses[-1] < losses[0] / 2
    assert kept.rows[-1]["reward/mean"] > 0.5  # nothing but the demonstrations says at first what earns anything


def test_demonstrations_without_a_source_are_refused():
    with pytest.raises(PolicyError, match="sft_coef"):
        algorithm(sft_coef=0.5)
