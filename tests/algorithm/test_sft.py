"""The warm-up and when it ends; imitation in the steps of a training (ECHO, demonstrations), against loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from letters import TASKS, AnyReward, CountLetters, Kept, Letters, algorithm

from helpers import group_of_conversations, tiny_policy
from mini_agentic_rl import Trainer
from mini_agentic_rl.algorithm import sft
from mini_agentic_rl.algorithm.batch import Imitated
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.grpo import GRPOObjective
from mini_agentic_rl.algorithm.rollouts import Evaluation, FinishedRollout
from mini_agentic_rl.algorithm.settings import GRPOSettings, WarmStart, WarmStartSettings
from mini_agentic_rl.algorithm.sft import Readiness, observed, readiness_of
from mini_agentic_rl.policy import LearnerSettings, LoraSettings, LossOutputs, PolicyError
from mini_agentic_rl.tokens import CompletionRecord, TokenTree, pack
from mini_agentic_rl.types import Rollout


def finished(reward, outputs=(5,), logprobs=(-1.0,), task=None):
    record = CompletionRecord(np.array([1, 2], np.int64), np.array(outputs, np.int64), np.array(logprobs, np.float32))
    rollout = Rollout(rollout_id="ro", input=task or {}, start_time=0.0, status="succeeded")
    return FinishedRollout(rollout, (), (record,), reward, None)


def probed(*right, tries=8):
    rollouts = [finished(float(index < count)) for count in right for index in range(tries)]
    return readiness_of(Evaluation("probe", rollouts, tries))


def test_some_tries_right_and_most_tasks_solved_once_is_ready():
    found = probed(2, 3, 1, 4)
    assert (found.pass_1, found.pass_n, found.tasks) == (10 / 32, 1.0, 4)
    assert found.is_ready
    assert found.warning is None
    assert found.line.startswith("31 % of single tries, 100 % of 8")


@pytest.mark.parametrize(
    ("right", "says"),
    [
        ((0, 0, 0, 0), "no try of any task was right"),
        ((8, 0, 0, 0), "as sure of wrong answers"),
    ],
)
def test_a_policy_with_little_to_select_from_gets_the_reason(right, says):
    found = probed(*right)
    assert not found.is_ready
    assert says in found.warning


def test_a_kind_of_task_that_no_try_solves_is_not_ready():
    def probe(*right):
        rollouts = [
            finished(float(index < count), task={"kind": kind})
            for kind, count in zip(("sum", "product"), right, strict=True)
            for index in range(8)
        ]
        return readiness_of(Evaluation("probe", rollouts, 8))

    assert probe(3, 3).is_ready
    found = probe(0, 4)
    assert (found.pass_1, found.pass_n, list(found.never_right)) == (0.25, 0.5, ["sum"])
    assert not found.is_ready
    assert "of the kind sum was right" in found.warning


def test_entropy_is_that_of_the_tokens_where_tries_of_a_task_diverge():
    one, other = finished(1.0, (5, 6, 9), (-0.1, -0.7, -0.3)), finished(1.0, (5, 7, 9), (-0.1, -0.9, -0.2))

    def entropy(*rollouts, tries):
        return readiness_of(Evaluation("probe", rollouts, tries)).entropy

    assert entropy(one, other, tries=2) == pytest.approx(0.8)
    assert entropy(one, one, tries=2) == 0.0
    assert entropy(one, other, tries=1) == 0.0  # other tasks are no tries of this one
    assert "0.80 nats" in readiness_of(Evaluation("probe", [one, other], 2)).line


def _warmed_up(folder, monkeypatch, *, ready, **settings):
    """Warm up with 12 examples; return the algorithm."""
    found = Readiness(0.3, 0.9, 8, 4, 1.0) if ready else Readiness(0.4, 0.4, 8, 4, 0.0)
    monkeypatch.setattr(sft, "readiness_of", lambda evaluation: found)
    monkeypatch.setattr(sft, "_PROBE_TASKS", 1)
    start = WarmStart(
        lambda task: [{"role": "user", "content": task["word"]}, {"role": "assistant", "content": "a"}],
        (),
        WarmStartSettings(examples=12, batch_size=1, **settings),
    )
    trained = algorithm(total_steps=0, warm_start=start)
    trainer = Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=8, output_dir=folder, logger=Kept())
    tasks = [{"word": f"{word}{number}"} for number in range(3) for word in ("hi", "go", "yo", "me")]
    trainer.fit(Letters(), tasks)
    return trained, trainer.logger.notes


def test_the_warm_up_ends_when_the_policy_is_ready(tmp_path, monkeypatch):
    trained, notes = _warmed_up(tmp_path, monkeypatch, ready=True)
    assert trained.progress.imitated == {"default": 6}
    assert trained.progress.readiness["default"]["ready"]
    assert any(note.startswith("ready for rewards: 30 % of single tries, 90 % of 8") for note in notes)


def test_the_warm_up_ends_where_most_tries_are_right_already():
    found = probed(8, 8, 5, 4)
    assert found.ends_warm_up
    assert not found.is_ready
    assert found.warning is None
    assert not probed(0, 0, 1, 0).ends_warm_up


def test_the_warm_up_takes_all_examples_where_it_is_not_ready_or_not_asked(tmp_path, monkeypatch, caplog):
    trained, notes = _warmed_up(tmp_path / "unready", monkeypatch, ready=False)
    assert trained.progress.imitated == {"default": 12}
    assert any(note.startswith("step 12 of the warm-up: 40 % of single tries, 40 % of 8") for note in notes)
    assert "as sure of wrong answers" in caplog.text
    trained, notes = _warmed_up(tmp_path / "examples", monkeypatch, ready=True, until="examples")
    assert trained.progress.imitated == {"default": 12}
    assert trained.progress.readiness == {}


def test_a_kl_penalty_compares_with_the_policy_after_the_warm_up():
    kept = Kept()
    start = WarmStart(
        lambda task: [{"role": "user", "content": task["word"]}, {"role": "assistant", "content": "aaaa"}],
        settings=WarmStartSettings(examples=8, batch_size=2, learning_rate=1e-2),
    )
    trained = algorithm(
        total_steps=3, tasks_per_step=2, samples_per_prompt=4, kl_coef=0.1, lora=LoraSettings(r=4), warm_start=start
    )
    Trainer(algorithm=trained, hooks=[AnyReward()], n_runners=8, logger=kept).fit(Letters(), TASKS)
    divergences = [row["kl"] for row in kept.rows if "kl" in row]
    assert divergences[0] == pytest.approx(0, abs=1e-6)
    assert divergences[-1] > 1e-5


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
    def source(step):
        records = [_record([5, 6, 7], [8, 9]), _record([5, 6, 1], [2])]
        return [Imitated(record, 0.5 / 3, "sft") for record in records]

    with tiny_policy() as policy:
        groups = _groups(policy)
        plain, without = _gradients(policy, GRPOSettings(), groups)
        settings = GRPOSettings(sft_coef=0.5)
        figures, found = _gradients(policy, settings, groups, demonstrations={"default": source})
        total, more = _nll(policy, [([5, 6, 7], [8, 9], 0.5 / 3), ([5, 6, 1], [2], 0.5 / 3)])
    assert figures["sft/nll"] == pytest.approx(total / 0.5, rel=1e-4)
    for ours, policy_gradient, imitation in zip(found, without, more, strict=True):
        torch.testing.assert_close(ours, policy_gradient + imitation, rtol=1e-3, atol=1e-6)
    for name in ("entropy", "mismatch/mean_abs", "clip_fraction"):  # of the policy's own terms alone
        assert figures[name] == pytest.approx(plain[name], rel=1e-3, abs=1e-6)


def test_a_training_imitates_a_few_demonstrations_in_each_step():
    kept = Kept()
    start = WarmStart(
        lambda task: [{"role": "user", "content": task["word"]}, {"role": "assistant", "content": "aaaa"}],
        settings=WarmStartSettings(examples=0),
    )
    trained = algorithm(total_steps=4, tasks_per_step=2, samples_per_prompt=4, sft_coef=1.0, warm_start=start)
    Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=8, logger=kept).fit(Letters(), TASKS)
    losses = [row["sft/nll"] for row in kept.rows if "sft/nll" in row]
    assert len(losses) == 4
    assert losses[-1] < losses[0]


def test_demonstrations_without_a_source_are_refused():
    with pytest.raises(PolicyError, match="sft_coef"):
        algorithm(sft_coef=0.5)
