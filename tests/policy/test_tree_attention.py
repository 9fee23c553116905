"""Attention over trees, by blocks and by FlexAttention, is one masked product, forward and backward.

Uncompiled, torch computes FlexAttention on the CPU too, but refuses inputs that want a gradient there, for want of a
compiled kernel; the tests take that check away. What is compiled is tried out on the device itself, before its first
use.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

from helpers import group_of_conversations, pack_rollouts, tiny_policy
from mini_agentic_rl.policy import LearnerSettings, LossInputs, LossOutputs, tree_attention, tree_pass
from mini_agentic_rl.policy.attention import Scoring
from mini_agentic_rl.policy.tree_attention import FlexMask, KeptKeys, TreeTables, seen_in, trusted
from mini_agentic_rl.tokens import CompletionRecord, cut

HEADS, KEY_HEADS, SIZE = 6, 2, 8


def packed_trees(sequences):
    return pack_rollouts(
        [
            [CompletionRecord(np.array(tokens[:1]), np.array(tokens[1:]), np.zeros(len(tokens) - 1, np.float32))]
            for tokens in sequences
        ]
    )


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
@settings(max_examples=50, deadline=None)
def test_it_equals_one_masked_product(sequences, max_tokens, smallest, largest):
    packed = packed_trees(sequences)
    torch.manual_seed(0)
    size = packed.token_count
    inputs = [torch.randn(heads, size, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    weights = torch.randn(size, HEADS, SIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_attention, "_SMALLEST", smallest)
        patch.setattr(tree_attention, "_LARGEST", largest)
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
        blocks = tree_attention.blocks_of(packed, chunk, 1)
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


CPU = torch.device("cpu")
PROMPT = list(range(140))
BRANCHES = [[*PROMPT, *range(1000 * n, 1000 * n + 20 * n)] for n in range(1, 5)]


def in_one_product(q, k, v, *, score_mod, block_mask, enable_gqa):
    """What FlexAttention computes, without the seconds that torch takes to trace each shape."""
    assert enable_gqa
    k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    where = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
    scores = scores if score_mod is None else score_mod(scores, *where)
    return scores.masked_fill(~block_mask.mask_mod(*where), float("-inf")).softmax(-1) @ v


def test_it_equals_attention_block_by_block(monkeypatch):
    """In chunks, with a scale that is not torch's, a window and a softcap."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)
    scoring = Scoring(0.4, 30, 2.0)
    packed = packed_trees(BRANCHES)
    torch.manual_seed(0)
    inputs = [torch.randn(heads, packed.token_count, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    weights = torch.randn(packed.token_count, HEADS, SIZE)
    found = attention(packed, 200, scoring, inputs, weights, torch_flex.flex_attention)
    expected = attention(packed, 200, scoring, inputs, weights)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=14), min_size=1, max_size=7),
    st.sampled_from([1, 3, 8, 100]),
    st.sampled_from([None, 1, 4]),
    st.sampled_from([1, 2, 5]),
)
@settings(max_examples=25, deadline=None)
def test_no_block_is_left_out_and_whole_ones_hide_nothing(sequences, max_tokens, window, size):
    """The kernel computes only the blocks that are listed, and applies the mask only in those that are not whole."""
    packed = packed_trees(sequences)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_attention, "_BLOCK", size)
        for chunk in cut(packed, max_tokens):
            seen = seen_in(packed, chunk, window)
            pairs = seen.rows(0, seen.query_Q.size)
            mask = FlexMask(seen, CPU)
            blocks = mask.blocks
            assert mask.queries >= 2 * size
            assert mask.keys != mask.queries
            sees = np.zeros((mask.queries, mask.keys), bool)
            for row in range(mask.queries // size):
                q = np.arange(row * size, (row + 1) * size)[:, None]
                for block in blocks.full_kv_indices[0, 0, row, : blocks.full_kv_num_blocks[0, 0, row]].tolist():
                    sees[q, np.arange(block * size, (block + 1) * size)] = True
                for block in blocks.kv_indices[0, 0, row, : blocks.kv_num_blocks[0, 0, row]].tolist():
                    k = np.arange(block * size, (block + 1) * size)
                    sees[q, k] = blocks.mask_mod(0, 0, torch.from_numpy(q), torch.from_numpy(k)).numpy()
            assert (sees[: len(pairs), : pairs.shape[1]] == pairs).all()
            assert not sees[:, pairs.shape[1] :].any()


def test_what_a_tree_hides_is_skipped():
    packed = packed_trees([[*range(300), *range(1000 * n, 1000 * n + 300)] for n in range(1, 7)])
    (chunk,) = cut(packed, 10_000)
    mask = FlexMask(seen_in(packed, chunk, None), CPU)
    computed = int(mask.blocks.kv_num_blocks.sum() + mask.blocks.full_kv_num_blocks.sum())
    assert computed < (mask.queries // 128) * (mask.keys // 128) / 2


def test_a_learner_gets_the_same_gradient_and_its_scorer_uses_it_too(monkeypatch):
    """Through the model's layers, in chunks, with and without checkpointing."""
    with tiny_policy() as policy:
        packed = pack_rollouts(group_of_conversations(policy, rollouts=3, turns=2))
        inputs = LossInputs(torch.linspace(-1, 1, packed.term_count))

        def gradient(checkpointing: bool) -> torch.Tensor:
            learner = policy.learner(LearnerSettings(max_batch_tokens=40, checkpointing=checkpointing))
            learner.forward_backward(packed, lambda i: LossOutputs((i.weights_S * i.logprobs_S).sum()), inputs)
            found = torch.cat([p.grad.flatten().clone() for p in learner.parameters])
            for parameter in learner.parameters:
                parameter.grad = None
            return found

        def scored(with_flex: bool) -> torch.Tensor:
            return policy.learner(LearnerSettings(max_batch_tokens=40, flex_attention=with_flex)).logprobs(packed)

        expected = policy.run(lambda: gradient(False))
        used = []
        monkeypatch.setattr(tree_pass, "flex_on", lambda *kind: used.append(kind) or in_one_product)
        gradients = [policy.run(lambda kept=kept: gradient(kept)) for kept in (False, True)]
        logprobs = [policy.run(lambda with_flex=with_flex: scored(with_flex)) for with_flex in (True, False)]
        model = policy.model
        assert used == [(model.device, model.dtype, model.heads, model.kv_heads, model.head_size)] * 3
    torch.testing.assert_close(*logprobs, atol=1e-5, rtol=1e-4)
    for found in gradients:
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_it_is_tried_out_before_it_is_trusted(caplog):
    kind = (CPU, torch.float32, HEADS, KEY_HEADS, SIZE)
    assert trusted(in_one_product, *kind)

    def without_mask(q, k, v, **_):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def broken(*_, **__):
        raise RuntimeError("no Triton here")

    assert not trusted(without_mask, *kind)
    assert not trusted(broken, *kind)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert "no Triton here" in warnings[1]
