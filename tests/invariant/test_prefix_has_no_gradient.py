"""The tokens of an expert prefix are context: the gradient is that of the sampled calls alone, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from helpers import group_of_conversations, tiny_policy
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.grpo import batch_of
from mini_agentic_rl.algorithm.policy_gradient import loss_of
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.policy import LearnerSettings


def _gradient(policy, conversations):
    trajectories = [Trajectory(str(n), records, float(n % 2)) for n, records in enumerate(conversations)]
    settings = GRPOSettings()
    batch = batch_of([Group("0", trajectories)], settings)

    def job():
        learner = policy.learner(LearnerSettings())
        learner.forward_backward(batch.packed, loss_of(settings), batch.inputs)
        gradient = torch.cat([parameter.grad.flatten().clone() for parameter in learner.parameters])
        for parameter in learner.parameters:
            parameter.grad = None
        return gradient

    return batch, policy.run(job)


def test_forced_calls_add_nothing_to_the_gradient():
    with tiny_policy() as policy:
        conversations = [records for records in group_of_conversations(policy, seed=1) if len(records) > 1]
        assert len(conversations) > 1
        given = [
            [replace(records[0], forced=np.ones(records[0].output_ids.size, bool)), *records[1:]]
            for records in conversations
        ]
        batch, with_prefix = _gradient(policy, given)
        _, without = _gradient(policy, [records[1:] for records in conversations])
        _, sampled = _gradient(policy, conversations)
    assert with_prefix.abs().max() > 0
    torch.testing.assert_close(with_prefix, without, rtol=0, atol=0)
    assert not torch.equal(with_prefix, sampled), "sampled first calls would have been trained"
    trained = sum(record.trained_tokens for records in given for record in records[1:])
    assert batch.packed.term_count == trained
