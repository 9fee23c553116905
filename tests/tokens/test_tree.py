"""The token tree, its packed form, and the chunks that it is cut into."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.tokens import CompletionRecord, TokenTree, cut, most_alive, pack


def record(prompt, output, **options) -> CompletionRecord:
    return CompletionRecord(np.array(prompt), np.array(output), np.zeros(len(output), np.float32), **options)


def tree_of(*pairs) -> TokenTree:
    tree = TokenTree()
    for number, (prompt, output) in enumerate(pairs):
        tree.insert(record(prompt, output), number)
    return tree


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
def test_chunks_hold_every_token_once_and_read_the_path_above_them(forest, max_tokens):
    packed = pack([tree_of(*tree) for tree in forest])
    chunks = list(cut(packed, max_tokens))
    assert [chunk.start for chunk in chunks] == [0, *(chunk.stop for chunk in chunks[:-1])]
    assert chunks[-1].stop == packed.token_count
    for chunk in chunks:
        assert 0 < chunk.stop - chunk.start <= max_tokens
        # Descendants of a token are those before its end, so it is an ancestor of a token between itself and there.
        assert chunk.context_C.tolist() == [s for s in range(chunk.start) if packed.end_T[s] > chunk.start]
        descendants = [t for s in range(chunk.start, chunk.stop) for t in range(s, int(packed.end_T[s]))]
        assert chunk.reach == max(descendants) + 1
    alive = [
        sum(other.stop - other.start for other in chunks[: n + 1] if other is chunk or other.reach > chunk.start)
        for n, chunk in enumerate(chunks)
    ]
    assert max(alive) == most_alive(packed, max_tokens) <= packed.token_count


def test_a_whole_subtree_is_not_cut_where_it_fits():
    tree = tree_of(*(([1, 2, 3, 4], [10 * n + k for k in range(6)]) for n in range(1, 4)))
    sizes = [(chunk.start, chunk.stop) for chunk in cut(pack([tree]), 10)]
    assert sizes == [(0, 4), (4, 10), (10, 16), (16, 22)]
    assert [(chunk.start, chunk.stop) for chunk in cut(pack([tree]), 22)] == [(0, 22)]
