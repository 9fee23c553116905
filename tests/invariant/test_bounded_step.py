"""No optimizer step moves the policy by more than the bound, and what the bound does not touch is as without it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import group_of_conversations, tiny_policy
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.grpo import batch_of, take_steps
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.policy import LearnerSettings, LoraSettings, PolicyModel


def _batch(policy):
    groups = [
        Group(
            str(task),
            [
                Trajectory(f"{task}/{n}", records, float(n % 2))
                for n, records in enumerate(group_of_conversations(policy, seed=task))
            ],
        )
        for task in range(3)
    ]
    return batch_of(groups, GRPOSettings())


def _stepped(bound, *, rate=0.02, epochs=1, lora=LoraSettings(), poison=False):  # noqa: B008
    """Take the steps of a batch; return the weights before and after, how far the policy moved, and the metrics."""
    with tiny_policy(lora=lora) as policy:
        batch = _batch(policy)
        settings = GRPOSettings(max_update_kl=bound, epochs_per_batch=epochs)

        def job():
            learner = policy.learner(LearnerSettings(learning_rate=rate))
            before, of_before = _flat(learner), learner.logprobs(batch.packed).double()
            if poison:
                batch.inputs.advantages_S[0] = np.inf
            metrics = take_steps(learner, batch, settings)
            ratio = learner.logprobs(batch.packed).double() - of_before
            return before, _flat(learner), float((ratio.exp() - 1 - ratio).mean()), metrics

        return policy.run(job)


def _flat(learner):
    return torch.cat([parameter.detach().flatten().clone() for parameter in learner.parameters])


@pytest.mark.parametrize("lora", [LoraSettings(), LoraSettings(dropout=0.3), None], ids=["lora", "dropout", "full"])
def test_a_step_that_is_too_long_is_shortened_to_the_bound_along_its_own_way(lora):
    torch.manual_seed(0)
    before, free, far, _ = _stepped(0, lora=lora)
    torch.manual_seed(0)
    _, bounded, near, metrics = _stepped(0.01, lora=lora)
    assert far > 0.02
    assert near <= 0.01
    assert metrics["update/kl"] == pytest.approx(near, rel=1e-3, abs=1e-6)
    assert 0 < metrics["update/share"] < 1
    torch.testing.assert_close(bounded, before + metrics["update/share"] * (free - before), rtol=1e-4, atol=1e-6)


def test_a_step_within_the_bound_is_the_one_without_it():
    _, free, far, _ = _stepped(0, rate=1e-4)
    _, bounded, _, metrics = _stepped(0.1, rate=1e-4)
    assert 0 < far < 0.01
    assert metrics["update/share"] == 1
    assert torch.equal(free, bounded)


def test_each_step_of_several_over_a_batch_has_the_bound_for_itself():
    *_, once, _ = _stepped(0.01)
    *_, twice, metrics = _stepped(0.01, epochs=2)
    assert 0 < once <= 0.01
    assert twice > once
    assert metrics["update/kl"] <= 0.01


def test_a_step_that_is_skipped_moves_nothing():
    before, after, moved, metrics = _stepped(0.01, poison=True)
    assert metrics["skipped"] == 1
    assert torch.equal(before, after)
    assert (moved, metrics["update/kl"]) == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-9))


def test_nobody_samples_with_weights_that_may_not_stay():
    with tiny_policy() as policy:
        batch, paused = _batch(policy), []

        def job():
            learner = policy.learner(LearnerSettings(learning_rate=0.02))
            model: PolicyModel = policy.model
            model.on_pause = lambda: paused.append(learner.version)
            take_steps(learner, batch, GRPOSettings(max_update_kl=1e-3))
            asked = model.on_pause
            model.on_pause = None
            return asked is not None

        assert policy.run(job), "afterwards others may compute again"
    assert paused
    assert set(paused) == {0}
