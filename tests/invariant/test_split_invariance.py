"""Invariant 4: however a batch is split into micro-batches, the gradient is the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import group_of_conversations, tiny_policy
from mini_agentic_rl.algorithm.grpo.advantage import group_normalized
from mini_agentic_rl.algorithm.grpo.batch import Group, Trajectory, make_batch
from mini_agentic_rl.algorithm.grpo.loss import GRPOLoss
from mini_agentic_rl.policy import LearnerSettings


def _batch(policy, aggregation, max_tree_tokens=10**6):
    rng = np.random.default_rng(0)
    groups = [
        Group(
            str(task),
            [
                Trajectory(f"{task}/{i}", records[: 1 + (i + task) % 3], float(rng.integers(0, 3)))
                for i, records in enumerate(group_of_conversations(policy, seed=task))
            ],
        )
        for task in range(4)
    ]
    return make_batch(
        groups,
        group_normalized,
        aggregation,
        max_length=50,
        max_tree_tokens=max_tree_tokens,
        mask_truncated=False,
        keep_zero_advantage=True,
    )


def _gradient(policy, batch, max_tokens):
    def job():
        learner = policy.learner(LearnerSettings())
        passes = 0
        for micro in batch.micro_batches(max_tokens):
            learner.forward_backward(
                micro.packed, GRPOLoss(), {"advantages": micro.advantages_S, "weights": micro.weights_S}
            )
            passes += 1
        found = torch.cat([p.grad.flatten().clone() for p in learner.parameters])
        for parameter in learner.parameters:
            parameter.grad = None
        return found, passes

    return policy.run(job)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "dr_grpo"])
def test_any_split_gives_the_same_gradient(aggregation):
    with tiny_policy() as policy:
        batch = _batch(policy, aggregation, 60)
        whole, one = _gradient(policy, batch, 10**6)
        apart, several = _gradient(policy, batch, 1)
    assert (one, several) == (1, len(batch.trees))
    assert several > 1
    assert whole.norm() > 0
    assert (whole - apart).norm() / whole.norm() < 1e-5


@pytest.mark.parametrize("most", [1, 60, 80])
def test_one_tree_of_all_groups_gives_the_gradient_of_many_trees(most):
    with tiny_policy() as policy:
        whole, cut = _batch(policy, "sequence"), _batch(policy, "sequence", most)
        assert len(cut.trees) > len(whole.trees) == 1
        assert cut.tree_tokens > whole.tree_tokens
        assert cut.unrolled_tokens == whole.unrolled_tokens
        if most > 1:
            assert max(tree.token_count for tree in cut.trees) <= most
        expected, _ = _gradient(policy, whole, 10**6)
        found, _ = _gradient(policy, cut, most)
    assert float((found - expected).norm() / expected.norm()) < 1e-5
