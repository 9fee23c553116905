"""Invariant 2: a packed tree gives the log-probabilities and the gradients of the unrolled sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import group_of_conversations, tiny_policy
from mini_agentic_rl.policy import LearnerSettings, LossInputs, LossOutputs
from mini_agentic_rl.tokens import TokenTree, pack


def _unrolled(conversations):
    """Each rollout's last call as one sequence: a tree without branches per rollout."""
    trees = []
    for index, records in enumerate(conversations):
        tree = TokenTree()
        for record in records:
            tree.insert(record, index)
        trees.append(tree)
    return trees


def _together(conversations):
    tree = TokenTree()
    for index, records in enumerate(conversations):
        for record in records:
            tree.insert(record, index)
    return [tree]


def _weighted(inputs):
    return LossOutputs((inputs.weights_S * inputs.logprobs_S).sum())


def _gradients(policy, trees, settings):
    def job():
        learner = policy.learner(settings)
        for tree in trees:
            packed = pack([tree])
            # A weight that depends on what the term is, not on where it stands.
            weights = np.sin(1.0 + packed.trajectory_S * 7 + packed.behaviour_logprobs_S * 3).astype(np.float32)
            learner.forward_backward(packed, _weighted, LossInputs(torch.from_numpy(weights)))
        found = torch.cat([p.grad.flatten().clone() for p in learner.parameters])
        for parameter in learner.parameters:
            parameter.grad = None
        return found

    return policy.run(job)


def test_shared_tokens_are_held_once():
    with tiny_policy() as policy:
        conversations = group_of_conversations(policy)
        whole = sum(tree.token_count for tree in _together(conversations))
        apart = sum(tree.token_count for tree in _unrolled(conversations))
    assert whole <= apart - 3 * 21


def test_log_probabilities_agree():
    with tiny_policy() as policy:
        conversations = group_of_conversations(policy)
        one, many = pack(_together(conversations)), pack(_unrolled(conversations))
        learner = policy.run(lambda: policy.learner(LearnerSettings(head_rows=7)))
        whole = policy.run(lambda: learner.logprobs(one)).numpy()
        apart = policy.run(lambda: learner.logprobs(many)).numpy()
    assert one.term_count == many.term_count == 4 * 3 * 6
    np.testing.assert_array_equal(one.trajectory_S, many.trajectory_S)
    np.testing.assert_allclose(whole, apart, atol=1e-4, rtol=0)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("head_rows", [5, 1000])
@pytest.mark.parametrize("max_batch_tokens", [13, 1000])
def test_gradients_agree(checkpointing, head_rows, max_batch_tokens):
    settings = LearnerSettings(checkpointing=checkpointing, head_rows=head_rows, max_batch_tokens=max_batch_tokens)
    with tiny_policy() as policy:
        conversations = group_of_conversations(policy)
        apart = _gradients(policy, _unrolled(conversations), LearnerSettings(head_rows=1000))
        whole = _gradients(policy, _together(conversations), settings)
    assert apart.norm() > 0
    assert (whole - apart).norm() / apart.norm() < 1e-4


def test_a_token_sampled_by_two_rollouts_is_one_token_and_two_terms():
    with tiny_policy() as policy:
        conversations = group_of_conversations(policy, rollouts=1)
        tree = TokenTree()
        for index in range(2):
            for record in conversations[0]:
                tree.insert(record, index)
        packed = pack([tree])
    assert packed.term_count == 2 * 3 * 6
    assert len(set(packed.token_S.tolist())) == 3 * 6
