"""The token tree, its packed form, and the chunks that it is cut into."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.tokens import CompletionRecord, PackedTrees, TokenTree, cut, most_alive, pack


def record(prompt, output, **options) -> CompletionRecord:
    return CompletionRecord(np.array(prompt), np.array(output), np.zeros(len(output), np.float32), **options)


def tree_of(*pairs) -> TokenTree:
    tree = TokenTree()
    for number, (prompt, output) in enumerate(pairs):
        tree.insert(record(prompt, output), number)
    return tree


def sequence(packed: PackedTrees, index: int) -> list[int]:
    """The tokens from the root down to a packed one."""
    found = []
    while index >= 0:
        found.append(int(packed.tokens_T[index]))
        index = int(packed.parent_T[index])
    return found[::-1]


def test_what_records_begin_with_alike_is_held_once():
    tree = tree_of(([1, 2, 3], [4, 5]), ([1, 2, 3], [4, 6]), ([1, 2, 3, 4, 5], [7]))
    assert tree.token_count == 7
    packed = pack([tree])
    assert sorted(sequence(packed, int(index)) for index in packed.token_S) == [
        [1, 2, 3, 4],
        [1, 2, 3, 4],
        [1, 2, 3, 4, 5],
        [1, 2, 3, 4, 5, 7],
        [1, 2, 3, 4, 6],
    ]
    assert sorted(packed.trajectory_S.tolist()) == [0, 0, 1, 1, 2]


def test_a_record_without_output_or_with_none_that_was_chosen_has_no_term():
    tree = tree_of(([1, 2], []))
    tree.insert(record([1], [2, 3], forced=np.array([True, False])), 1)
    packed = pack([tree])
    assert packed.tokens_T[packed.token_S].tolist() == [3]
    with pytest.raises(ValueError, match="nothing to train"):
        pack([tree_of(([1, 2], []))])


def test_a_record_whose_arrays_do_not_fit_is_refused():
    with pytest.raises(ValueError, match="log-probabilities"):
        CompletionRecord(np.array([1]), np.array([2, 3]), np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="at least one prompt token"):
        record([], [1])


FORESTS = st.lists(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=6), st.lists(st.integers(0, 1), max_size=5)),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=3,
).filter(lambda forest: any(output for tree in forest for _, output in tree))


@settings(max_examples=100, deadline=None)
@given(forest=FORESTS, max_tokens=st.integers(1, 12))
def test_chunks_hold_every_token_once_and_know_what_they_look_at(forest, max_tokens):
    packed = pack([tree_of(*tree) for tree in forest])
    chunks = list(cut(packed, max_tokens))
    assert [chunk.start for chunk in chunks] == [0, *(chunk.stop for chunk in chunks[:-1])]
    assert chunks[-1].stop == packed.token_count
    for chunk in chunks:
        assert 0 < chunk.stop - chunk.start <= max_tokens
        # Descendants of a token are those before its end, so it is an ancestor of a token between itself and there.
        context = [s for s in range(chunk.start) if packed.end_T[s] > chunk.start]
        assert chunk.context_C.tolist() == context
        looking = [t for s in range(chunk.start, chunk.stop) for t in range(s, int(packed.end_T[s]))]
        assert chunk.reach == max(looking) + 1
        for token in range(chunk.start, chunk.stop):
            outside = [s for s in range(chunk.start) if packed.end_T[s] > token]
            assert outside == context[: len(outside)]


@settings(max_examples=100, deadline=None)
@given(forest=FORESTS, max_tokens=st.integers(1, 12))
def test_tokens_alive_are_those_of_a_chunk_and_of_all_that_wait_for_it(forest, max_tokens):
    packed = pack([tree_of(*tree) for tree in forest])
    chunks = list(cut(packed, max_tokens))
    alive = [
        sum(other.stop - other.start for other in chunks[: n + 1] if other is chunk or other.reach > chunk.start)
        for n, chunk in enumerate(chunks)
    ]
    assert max(alive) == most_alive(packed, max_tokens)
    assert max(alive) <= packed.token_count


def test_a_whole_subtree_is_not_cut_where_it_fits():
    tree = tree_of(*(([1, 2, 3, 4], [10 * n + k for k in range(6)]) for n in range(1, 4)))
    sizes = [(chunk.start, chunk.stop) for chunk in cut(pack([tree]), 10)]
    assert sizes == [(0, 4), (4, 10), (10, 16), (16, 22)]
    assert [(chunk.start, chunk.stop) for chunk in cut(pack([tree]), 22)] == [(0, 22)]
