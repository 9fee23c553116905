"""Invariant 4: however a batch is split, over calls or over the chunks of one call, the gradient is the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import group_of_conversations, tiny_policy
from mini_agentic_rl.algorithm.advantages import group_normalized
from mini_agentic_rl.algorithm.batch import make_batch
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.grpo import take_steps
from mini_agentic_rl.algorithm.policy_gradient import PolicyGradientLoss
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.policy import LearnerSettings, LoraSettings
from mini_agentic_rl.tokens import CompletionRecord, TokenTree, cut, pack


def _batch(policy, aggregation="sequence"):
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
        mask_truncated=False,
        keep_zero_advantage=True,
    )


def _gradient(policy, batch, max_tokens, checkpointing=False):
    def job():
        learner = policy.learner(LearnerSettings(max_batch_tokens=max_tokens, checkpointing=checkpointing))
        metrics = learner.forward_backward(batch.packed, PolicyGradientLoss(), batch.inputs)
        found = torch.cat([p.grad.flatten().clone() for p in learner.parameters])
        for parameter in learner.parameters:
            parameter.grad = None
        return found, metrics, learner.logprobs(batch.packed)

    return policy.run(job)


@pytest.mark.parametrize(
    ("aggregation", "max_tokens"),
    [("token", 1), *itertools.product(("token", "sequence", "dr_grpo"), (10, 37, 60))],
)
def test_any_split_gives_the_same_gradient(aggregation, max_tokens):
    with tiny_policy() as policy:
        batch = _batch(policy, aggregation)
        assert len(list(cut(batch.packed, max_tokens))) > 3
        whole, of_whole, logprobs = _gradient(policy, batch, 10**6)
        apart, of_parts, in_parts = _gradient(policy, batch, max_tokens)
    assert whole.norm() > 0
    assert (whole - apart).norm() / whole.norm() < 1e-5
    assert of_parts == pytest.approx(of_whole, abs=1e-5)
    assert (logprobs - in_parts).abs().max() < 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        GRPOSettings(preset="gspo", importance_correction="sequence", epochs_per_batch=2, clip_ratio=0.01),
        GRPOSettings(preset="cispo", importance_correction="token", entropy_coef=0.1, kl_coef=0.1, epochs_per_batch=2),
    ],
    ids=["gspo", "cispo"],
)
def test_a_whole_update_is_the_same_in_any_chunks_where_ratios_are_of_whole_rollouts(settings):
    def updated(max_tokens):
        with tiny_policy() as policy:
            batch = _batch(policy)
            rate = LearnerSettings(max_batch_tokens=max_tokens, learning_rate=1e-3)
            learner = policy.run(lambda: policy.learner(rate))
            before = torch.cat([p.detach().flatten().clone() for p in learner.parameters])
            figures = policy.run(lambda: take_steps(learner, batch, settings))
            return torch.cat([p.detach().flatten() for p in learner.parameters]) - before, figures

    (whole, of_whole), (apart, of_parts) = updated(10**6), updated(20)
    assert whole.norm() > 0
    assert (whole - apart).norm() / whole.norm() < 1e-3  # Adam divides small gradients by their own size
    assert of_parts == pytest.approx(of_whole, rel=1e-3, abs=1e-5)


def test_chunks_and_checkpointed_layers_go_together():
    with tiny_policy() as policy:
        batch = _batch(policy)
        whole, *_ = _gradient(policy, batch, 10**6)
        apart, *_ = _gradient(policy, batch, 20, checkpointing=True)
    assert (whole - apart).norm() / whole.norm() < 1e-5


@pytest.mark.parametrize("lora", [None, LoraSettings(target_modules=("q_proj", "down_proj"))])
def test_it_holds_when_the_first_keys_have_no_gradient_and_when_all_weights_have_one(lora):
    with tiny_policy(lora=lora) as policy:
        batch = _batch(policy)
        whole, *_ = _gradient(policy, batch, 10**6)
        apart, *_ = _gradient(policy, batch, 20)
    assert (whole - apart).norm() / whole.norm() < 1e-5


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=20), min_size=1, max_size=8),
    st.integers(1, 2),
    st.integers(1, 12),
)
@settings(max_examples=150, deadline=None)
def test_a_chunk_and_its_context_hold_all_that_its_tokens_look_at(sequences, trees, max_tokens):
    grown = [TokenTree() for _ in range(trees)]
    for index, tokens in enumerate(sequences):
        record = CompletionRecord(np.array(tokens[:1]), np.array(tokens[1:]), np.zeros(len(tokens) - 1, np.float32))
        grown[index % trees].insert(record, index)
    packed = pack(grown)
    chunks = list(cut(packed, max_tokens))
    assert [chunk.start for chunk in chunks] == [0, *(chunk.stop for chunk in chunks[:-1])]
    assert chunks[-1].stop == packed.token_count
    for chunk in chunks:
        assert 0 < chunk.stop - chunk.start <= max_tokens
        held = {*chunk.context_C.tolist(), *range(chunk.start, chunk.stop)}
        for token in range(chunk.start, chunk.stop):
            looked_at, where = set(), token
            while where >= 0:
                looked_at.add(where)
                where = int(packed.parent_T[where])
            assert looked_at <= held
        readers = [
            t for t in range(chunk.stop, packed.token_count) if (packed.end_T[chunk.start : chunk.stop] > t).any()
        ]
        assert chunk.reach > chunk.stop if readers else chunk.reach <= chunk.stop
