"""Invariant 6: each sampled token is trained at most once a rollout, groups are formed by task, and each rollout weighs
the same in its group however many calls it made."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.algorithm.advantages import group_normalized
from mini_agentic_rl.algorithm.batch import make_batch
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.tokens import CompletionRecord, TokenTree, pack

token = st.integers(0, 3)  # few tokens, so that prefixes are shared often
tokens = st.lists(token, min_size=1, max_size=6)


def _record(prompt, output, start=0):
    return CompletionRecord(
        np.array(prompt, np.int64), np.array(output, np.int64), -np.arange(start, start + len(output), dtype=np.float32)
    )


@st.composite
def conversations(draw):
    """Calls of one rollout: each continues the one before, or starts over from the prompt."""
    prompt = draw(tokens)
    context, records = list(prompt), []
    for _ in range(draw(st.integers(1, 4))):
        output = draw(tokens)
        records.append(_record(context, output, start=len(records) * 10))
        forks = draw(st.booleans())
        context = [*(prompt if forks else [*context, *output]), *draw(tokens)]
    return records


@given(st.lists(conversations(), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_a_packed_tree_says_of_every_term_what_its_record_says(rollouts):
    tree = TokenTree()
    for index, records in enumerate(rollouts):
        for record in records:
            tree.insert(record, index)
    packed = pack([tree])
    everything = [record for records in rollouts for record in records]
    assert packed.term_count == sum(record.output_ids.size for record in everything)
    for call, record in enumerate(everything):
        mine = packed.call_S == call
        np.testing.assert_array_equal(packed.tokens_T[packed.token_S[mine]], record.output_ids)
        np.testing.assert_array_equal(packed.behaviour_logprobs_S[mine], record.logprobs)
        # Walking up from the last sampled token gives back the whole sequence, in its positions.
        where, walked = int(packed.token_S[mine][-1]), []
        while where >= 0:
            walked.append(int(packed.tokens_T[where]))
            assert packed.positions_T[where] == record.prompt_ids.size + record.output_ids.size - len(walked)
            where = int(packed.parent_T[where])
        assert walked[::-1] == [*record.prompt_ids.tolist(), *record.output_ids.tolist()]


@given(st.lists(conversations(), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_ancestors_by_interval_are_the_ancestors_by_parent(rollouts):
    trees = []
    for index, records in enumerate(rollouts):
        tree = TokenTree()
        for record in records:
            tree.insert(record, index)
        trees.append(tree)
    packed = pack(trees)
    size = packed.token_count
    by_interval = {(t, s) for t in range(size) for s in range(t + 1) if t < packed.end_T[s]}
    by_parent = set()
    for t in range(size):
        where = t
        while where >= 0:
            by_parent.add((t, where))
            where = int(packed.parent_T[where])
    assert by_interval == by_parent


@given(st.lists(conversations(), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_no_two_nodes_begin_alike_and_every_record_ends_at_a_node(rollouts):
    tree = TokenTree()
    for index, records in enumerate(rollouts):
        for record in records:
            tree.insert(record, index)
    for node in tree.nodes:
        assert sorted(node.children) == sorted(int(tree.nodes[child].tokens[0]) for child in node.children.values())
    for sampled in tree.sampled:
        path = np.concatenate([tree.nodes[node].tokens for node in tree.path(sampled.node)])
        record = sampled.record
        np.testing.assert_array_equal(path, np.concatenate([record.prompt_ids, record.output_ids]))


def _batch(group):
    return make_batch(
        [group],
        group_normalized,
        "sequence",
        max_length=9,
        mask_truncated=False,
        keep_zero_advantage=False,
    )


def test_turns_of_a_rollout_are_trained_once_each():
    first = _record([1, 2], [3, 4])
    second = _record([1, 2, 3, 4, 5], [6])
    group = Group("task", [Trajectory("a", [first, second], 1.0), Trajectory("b", [_record([1, 2], [7])], 0.0)])
    batch = _batch(group)
    of_first = batch.packed.token_S[batch.packed.trajectory_S == 0].tolist()
    assert max(Counter(of_first).values()) == 1
    assert sorted(batch.packed.tokens_T[of_first].tolist()) == [3, 4, 6]


def test_each_rollout_weighs_the_same_however_many_calls_it_made():
    many = [_record([1], [2, 2]), _record([1, 2, 2, 3], [2]), _record([1, 2, 2, 3, 2, 3], [2, 2, 2])]
    group = Group("task", [Trajectory("a", many, 1.0), Trajectory("b", [_record([1], [3])], 0.0)])
    batch = _batch(group)
    totals = [float(batch.inputs.weights_S[batch.packed.trajectory_S == i].sum()) for i in range(2)]
    np.testing.assert_allclose(totals, [0.5, 0.5], rtol=1e-6)


def test_a_group_of_equal_rewards_is_not_trained():
    equal = Group("a", [Trajectory(str(i), [_record([1], [i])], 1.0) for i in range(3)])
    mixed = Group("b", [Trajectory(str(i), [_record([2], [i])], float(i)) for i in range(2)])
    options = {"max_length": 9, "mask_truncated": False, "keep_zero_advantage": False}
    assert make_batch([equal], group_normalized, "token", **options) is None
    batch = make_batch([equal, mixed], group_normalized, "token", **options)
    assert batch.packed.tokens_T.tolist() == [2, 0, 1]
