"""Attention block by block gives what one product under the tree's whole mask gives, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.policy import tree_attention as module
from mini_agentic_rl.policy.attention import Scoring
from mini_agentic_rl.policy.tree_attention import KeptKeys, TreeTables
from mini_agentic_rl.tokens import CompletionRecord, TokenTree, cut, pack

HEADS, KEY_HEADS, SIZE = 6, 2, 8


def packed_trees(sequences):
    tree = TokenTree()
    for index, tokens in enumerate(sequences):
        tree.insert(
            CompletionRecord(np.array(tokens[:1]), np.array(tokens[1:]), np.zeros(len(tokens) - 1, np.float32)), index
        )
    return pack([tree])


def attention(packed, max_tokens, scoring, inputs, weights, flex=None):
    """Outputs of all chunks, and the gradients of queries, keys and values."""
    q, k, v = (tensor.clone().requires_grad_() for tensor in inputs)
    outputs, path = [], []
    for chunk in cut(packed, max_tokens):
        own = slice(chunk.start, chunk.stop)
        kept = KeptKeys(chunk)
        tables = TreeTables(packed, chunk, path, None, torch.device("cpu"), flex)
        outputs.append(tables.attend(0, q[:, own], k[:, own], v[:, own], scoring))
        kept._cut[0] = (k[:, own], v[:, own])  # left in the graph, so that gradients arrive at once
        path.append(kept)
    out = torch.cat(outputs)
    (out * weights).sum().backward()
    return out.detach(), q.grad, k.grad, v.grad


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=14), min_size=1, max_size=7),
    st.sampled_from([1, 3, 8, 100]),
    st.sampled_from([1, 6, 48]),
    st.sampled_from([1, 4, 128]),
)
@settings(max_examples=80, deadline=None)
def test_it_equals_one_masked_product(sequences, max_tokens, smallest, largest):
    packed = packed_trees(sequences)
    torch.manual_seed(0)
    size = packed.token_count
    inputs = [torch.randn(heads, size, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    weights = torch.randn(size, HEADS, SIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SMALLEST", smallest)
        patch.setattr(module, "_LARGEST", largest)
        found = attention(packed, max_tokens, Scoring(0.4, None, None), inputs, weights)
    # A window longer than any path hides nothing, and takes the way of the dense mask.
    expected = attention(packed, max_tokens, Scoring(0.4, 10_000, None), inputs, weights)
    whole = attention(packed, 10**6, Scoring(0.4, 10_000, None), inputs, weights)
    for one, other, third in zip(found, expected, whole, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(other, third, atol=1e-5, rtol=1e-4)


def test_blocks_hold_each_token_once_and_see_no_key_in_vain():
    prompt = list(range(10, 50))
    packed = packed_trees([[*prompt, *range(1000 * n, 1000 * n + 30)] for n in range(1, 9)])
    chunks = list(cut(packed, 120))
    looked_at = 0
    for chunk in chunks:
        blocks = module.blocks_of(packed, chunk, 1)
        rows = [row for block in blocks for row in range(block.rows.start, block.rows.stop)]
        assert rows == list(range(chunk.stop - chunk.start))
        looked_at += sum((b.rows.stop - b.rows.start) * (b.context + b.hidden_RN.shape[1]) for b in blocks)
    assert looked_at < packed.token_count**2 / 3


def test_in_bfloat16_it_is_as_exact_as_its_inputs():
    packed = packed_trees([[*range(20), *range(1000 * n, 1000 * n + 30)] for n in range(1, 4)])
    torch.manual_seed(0)
    inputs = [torch.randn(heads, packed.token_count, SIZE).bfloat16() for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    weights = torch.randn(packed.token_count, HEADS, SIZE).bfloat16()
    scoring = Scoring(0.4, None, None)
    found = attention(packed, 60, scoring, inputs, weights)
    exact = attention(packed, 60, scoring, [tensor.double() for tensor in inputs], weights.double())
    for one, other in zip(found, exact, strict=True):
        assert (one.double() - other).norm() / other.norm() < 2**-7
