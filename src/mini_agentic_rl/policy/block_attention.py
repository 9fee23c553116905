"""Attention inside a chunk of packed trees, block by block: few products are computed that the tree's mask would hide.

The subtrees of a chunk do not see each other. Each looks at its own tokens under a small mask, and at a leading part of
the context. Nothing but queries, keys and values is kept for the backward pass, which computes the weights again.
Scores are float32 whatever the type of the queries; weights are rounded to that type once they are probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mini_agentic_rl.tokens import PackedTrees, TreeChunk

_SMALLEST = 48
"""Neighbouring subtrees are taken together up to so many tokens: smaller products would not pay."""
_LARGEST = 128
"""More tokens than these are taken one part after the other: a part sees no key after its last token, and its scores
stay in the processor's cache."""


@dataclass(frozen=True)
class Block:
    """Tokens `rows` of a chunk. They look at the chunk's tokens `own` under a mask, and at as much of the context."""

    rows: slice
    own: slice
    context: int
    hidden_RN: Tensor
    """What is added to the scores of `own`, once for each query head that shares a key head: 0, or minus infinity where
    one token does not see the other."""


def blocks_of(packed: PackedTrees, chunk: TreeChunk, groups: int) -> list[Block]:
    """The chunk's subtrees, or neighbouring ones together that see equally much of the context, or parts of large ones.

    Args:
        groups: query heads that share a key head.
    """
    return [
        _block(packed, chunk, first, range(start, min(start + _LARGEST, last)), groups)
        for first, last in _spans(packed, chunk)
        for start in range(first, last, _LARGEST)
    ]


def _spans(packed: PackedTrees, chunk: TreeChunk) -> Iterator[tuple[int, int]]:
    first = last = chunk.start
    while last < chunk.stop:
        end = min(int(packed.end_T[last]), chunk.stop)
        same_context = packed.positions_T[last] == packed.positions_T[first]
        if last > first and not (same_context and end - first <= _SMALLEST):
            yield first, last
            first = last
        last = end
    yield first, last


def _block(packed: PackedTrees, chunk: TreeChunk, first: int, rows: range, groups: int) -> Block:
    """The part `rows` of the span that begins at `first`."""
    row_R, own_N = np.arange(rows.start, rows.stop), np.arange(first, rows.stop)
    seen = (own_N <= row_R[:, None]) & (row_R[:, None] < packed.end_T[own_N])
    hidden = np.where(np.tile(seen, (groups, 1)), np.float32(0), np.float32("-inf"))
    return Block(
        rows=slice(rows.start - chunk.start, rows.stop - chunk.start),
        own=slice(first - chunk.start, rows.stop - chunk.start),
        # The path to a subtree's first token is what it sees of the context.
        context=int(packed.positions_T[first]),
        hidden_RN=torch.from_numpy(hidden),
    )


def block_attention(
    q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, context: tuple[Tensor, Tensor], blocks: Sequence[Block], scale: float
) -> Tensor:
    """[T, H, D]. `context` is keys and values [H, C, D]; they may have fewer heads than the queries."""
    out: Tensor = _BlockAttention.apply(q_HTD, k_HTD, v_HTD, *context, blocks, scale)  # type: ignore[no-untyped-call]
    return out


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_HTD: Tensor,
        k_HTD: Tensor,
        v_HTD: Tensor,
        ck_HCD: Tensor,
        cv_HCD: Tensor,
        blocks: Sequence[Block],
        scale: float,
    ) -> Tensor:
        heads, tokens, size = q_HTD.shape
        out_THD = q_HTD.new_empty(tokens, heads, size)
        for block in blocks:
            q_KRD = _folded(q_HTD[:, block.rows], k_HTD.shape[0])
            weights_KRN = _weights(q_KRD, _seen(ck_HCD, k_HTD, block), block, scale)
            out_KRD = weights_KRN.to(v_HTD.dtype) @ _seen(cv_HCD, v_HTD, block)
            out_THD[block.rows] = out_KRD.view(heads, -1, size).transpose(0, 1)
        ctx.save_for_backward(q_HTD, k_HTD, v_HTD, ck_HCD, cv_HCD)
        ctx.blocks, ctx.scale = blocks, scale
        return out_THD

    @staticmethod
    def backward(ctx: Any, grad_THD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, None, None]:
        q_HTD, k_HTD, v_HTD, ck_HCD, cv_HCD = ctx.saved_tensors
        heads, tokens, size = q_HTD.shape
        grad_HTD = grad_THD.transpose(0, 1)
        grad_q_THD = q_HTD.new_empty(tokens, heads, size)
        # What many blocks add to is summed in float32.
        grad_k, grad_v, grad_ck, grad_cv = (
            torch.zeros(t.shape, dtype=torch.float32, device=t.device) for t in (k_HTD, v_HTD, ck_HCD, cv_HCD)
        )
        for block in ctx.blocks:
            q_KRD, grad_KRD = (_folded(t[:, block.rows], k_HTD.shape[0]) for t in (q_HTD, grad_HTD))
            keys_KND, values_KND = _seen(ck_HCD, k_HTD, block), _seen(cv_HCD, v_HTD, block)
            weights_KRN = _weights(q_KRD, keys_KND, block, ctx.scale)
            of_weights_KRN = grad_KRD.float() @ values_KND.float().transpose(1, 2)
            of_scores_KRN = torch._softmax_backward_data(of_weights_KRN, weights_KRN, -1, torch.float32)
            of_scores_KRN = of_scores_KRN.to(q_KRD.dtype)
            of_q_KRD = of_scores_KRN @ keys_KND
            grad_q_THD[block.rows] = of_q_KRD.view(heads, -1, size).transpose(0, 1)
            _add(grad_ck, grad_k, block, of_scores_KRN.transpose(1, 2) @ q_KRD)
            _add(grad_cv, grad_v, block, weights_KRN.to(grad_KRD.dtype).transpose(1, 2) @ grad_KRD)
        grads = (grad_q_THD.transpose(0, 1), grad_k, grad_v, grad_ck, grad_cv)
        for grad in (grad_q_THD, grad_k, grad_ck):
            grad.mul_(ctx.scale)
        of_q, of_k, of_v, of_ck, of_cv = (grad.to(q_HTD.dtype) for grad in grads)
        return of_q, of_k, of_v, of_ck, of_cv, None, None


def _folded(tensor_HTD: Tensor, kv_heads: int) -> Tensor:
    """[key heads, groups x T, D]: the query heads that share a key head as more rows."""
    return tensor_HTD.reshape(kv_heads, -1, tensor_HTD.shape[-1])


def _seen(context_HCD: Tensor, own_HTD: Tensor, block: Block) -> Tensor:
    """Keys or values [H, N, D] that a block looks at."""
    own = own_HTD[:, block.own]
    return torch.cat([context_HCD[:, : block.context], own], 1) if block.context else own


def _add(context_HCD: Tensor, own_HTD: Tensor, block: Block, more_HND: Tensor) -> None:
    """Add what a block gives to the gradient of what `_seen` gave it."""
    context_HCD[:, : block.context] += more_HND[:, : block.context]
    own_HTD[:, block.own] += more_HND[:, block.context :]


def _weights(q_KRD: Tensor, keys_KND: Tensor, block: Block, scale: float) -> Tensor:
    """Probabilities [K, R, N], float32."""
    scores_KRN = (q_KRD.float() * scale) @ keys_KND.float().transpose(1, 2)
    scores_KRN[:, :, block.context :] += block.hidden_RN
    return scores_KRN.softmax(-1)
