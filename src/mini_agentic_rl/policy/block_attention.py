"""Attention inside a chunk of packed trees, block by block: no product is computed that the tree's mask would hide.

The subtrees of a chunk do not see each other. Each looks at its own tokens under a small mask, and at a leading part of
the context without any. The two are softmaxes over different keys; they are put together by their log-sum-exps, and in
the backward pass the whole's output and log-sum-exp give each part its exact gradient (as in FlashAttention; Dao et al.
2022, section 3.1).
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


@dataclass(frozen=True)
class Block:
    """Tokens of a chunk that look at themselves, under a mask, and at as much of the context."""

    rows: slice
    context: int
    hidden_NN: Tensor
    """What is added to the scores among themselves: 0, or minus infinity where one does not see the other."""


def blocks_of(packed: PackedTrees, chunk: TreeChunk, groups: int) -> list[Block]:
    """The chunk's subtrees, or neighbouring ones together that see equally much of the context.

    Args:
        groups: query heads that share a key head; the mask has its rows once for each.
    """
    return [_block(packed, chunk, first, last, groups) for first, last in _spans(packed, chunk)]


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


def _block(packed: PackedTrees, chunk: TreeChunk, first: int, last: int, groups: int) -> Block:
    index = np.arange(first, last)
    seen = (index[None, :] <= index[:, None]) & (index[:, None] < packed.end_T[first:last][None, :])
    hidden = np.where(np.tile(seen, (groups, 1)), np.float32(0), np.float32("-inf"))
    rows = slice(first - chunk.start, last - chunk.start)
    # The path to a subtree's first token is what it sees of the context.
    return Block(rows, int(packed.positions_T[first]), torch.from_numpy(hidden))


def block_attention(
    q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, context: tuple[Tensor, Tensor], blocks: Sequence[Block], scale: float
) -> Tensor:
    """[H, T, D], on the CPU. `context` is keys and values [H, C, D]; they may have fewer heads than the queries."""
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
        kv_heads = k_HTD.shape[0]
        out_HTD = torch.empty_like(q_HTD, memory_format=torch.contiguous_format)
        lse_HT = torch.empty(q_HTD.shape[:2], dtype=torch.float32)
        for block in blocks:
            rows, context = block.rows, slice(block.context)
            q = _folded(q_HTD[:, rows], kv_heads)
            out, lse = _forward(q, k_HTD[:, rows], v_HTD[:, rows], block.hidden_NN.to(q.dtype), scale)
            if block.context:
                further, further_lse = _forward(q, ck_HCD[:, context], cv_HCD[:, context], None, scale)
                whole_lse = torch.logaddexp(lse, further_lse)
                out = out * torch.exp(lse - whole_lse)[..., None].to(out.dtype)
                out.addcmul_(further, torch.exp(further_lse - whole_lse)[..., None].to(out.dtype))
                lse = whole_lse
            out_HTD[:, rows] = out.reshape(out_HTD[:, rows].shape)
            lse_HT[:, rows] = lse.reshape(lse_HT[:, rows].shape)
        ctx.save_for_backward(q_HTD, k_HTD, v_HTD, ck_HCD, cv_HCD, out_HTD, lse_HT)
        ctx.blocks, ctx.scale = blocks, scale
        return out_HTD

    @staticmethod
    def backward(ctx: Any, grad_HTD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, None, None]:
        q_HTD, k_HTD, v_HTD, ck_HCD, cv_HCD, out_HTD, lse_HT = ctx.saved_tensors
        kv_heads = k_HTD.shape[0]
        grad_q, grad_k, grad_v = torch.empty_like(q_HTD), torch.empty_like(k_HTD), torch.empty_like(v_HTD)
        grad_ck, grad_cv = torch.zeros_like(ck_HCD), torch.zeros_like(cv_HCD)
        for block in ctx.blocks:
            rows, context = block.rows, slice(block.context)
            q, grad, out = (_folded(t[:, rows], kv_heads) for t in (q_HTD, grad_HTD, out_HTD))
            lse = _folded(lse_HT[:, rows, None], kv_heads)[..., 0]
            of_q, of_k, of_v = _backward(
                grad, q, k_HTD[:, rows], v_HTD[:, rows], out, lse, block.hidden_NN.to(q.dtype), ctx.scale
            )
            grad_k[:, rows], grad_v[:, rows] = of_k, of_v
            if block.context:
                further_q, of_k, of_v = _backward(
                    grad, q, ck_HCD[:, context], cv_HCD[:, context], out, lse, None, ctx.scale
                )
                of_q += further_q
                grad_ck[:, context] += of_k
                grad_cv[:, context] += of_v
            grad_q[:, rows] = of_q.reshape(grad_q[:, rows].shape)
        return grad_q, grad_k, grad_v, grad_ck, grad_cv, None, None


def _folded(tensor_HTX: Tensor, kv_heads: int) -> Tensor:
    """[1, key heads, groups x T, X]: the query heads that share a key head as more rows."""
    return tensor_HTX.reshape(1, kv_heads, -1, tensor_HTX.shape[-1])


def _forward(q: Tensor, k_HKD: Tensor, v_HKD: Tensor, hidden: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k_HKD[None], v_HKD[None], 0.0, False, attn_mask=hidden, scale=scale
    )
    return found


def _backward(
    grad: Tensor,
    q: Tensor,
    k_HKD: Tensor,
    v_HKD: Tensor,
    out: Tensor,
    lse: Tensor,
    hidden: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    of_q, of_k, of_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k_HKD[None], v_HKD[None], out, lse, 0.0, False, attn_mask=hidden, scale=scale
    )
    return of_q, of_k[0], of_v[0]
