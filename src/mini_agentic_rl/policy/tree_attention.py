"""Attention of learning, inside packed trees: a token sees itself and its ancestors.

Trees are computed chunk by chunk. A chunk's queries attend to its own keys and to those of its context, the path above
it, which earlier chunks have computed and kept. Kept keys are detached from the graph that computed them: the gradients
of later chunks accumulate there, and enter that graph in its own backward pass.

On the CPU a chunk is computed block by block, which skips most products that the tree's mask would hide. The subtrees
of a chunk do not see each other: each attends to its own tokens under a small mask, and to a leading part of the
context. Only queries, keys and values are kept for the backward pass, which recomputes the weights. Scores are float32;
probabilities are rounded to the type of the queries.

On a GPU a chunk is computed by torch's FlexAttention (Dong et al. 2024, arXiv 2412.05496): one fused kernel that skips
the blocks of 128 queries by 128 keys that are hidden. torch compiles it once, for any number of tokens; before its
first use it is compared with a masked product. Without it one whole mask is used.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..tokens import PackedTrees, TreeChunk
from . import kernels
from .attention import Scoring, masked_attention
from .machine import on_device


class KeptKeys:
    """Keys and values of one chunk, layer by layer, for later chunks."""

    def __init__(self, chunk: TreeChunk) -> None:
        self.chunk = chunk
        self._made: dict[int, tuple[Tensor, Tensor]] = {}
        self._cut: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(self, layer: int, k_HTD: Tensor, v_HTD: Tensor) -> None:
        """Keep a layer's keys and values. A second call, from a recomputed checkpoint, is ignored."""
        if layer not in self._made:
            self._made[layer] = (k_HTD, v_HTD)
            self._cut[layer] = (_cut(k_HTD), _cut(v_HTD))

    def read(self, layer: int, indices: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values at `indices` of the chunk: [H, C, D] each."""
        k_HTD, v_HTD = self._cut[layer]
        if isinstance(indices, slice):
            return k_HTD[:, indices], v_HTD[:, indices]
        return k_HTD.index_select(1, indices), v_HTD.index_select(1, indices)

    def gathered(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the keys and values that later chunks have used, and their accumulated gradients."""
        pairs = [
            (made, cut.grad)
            for layer, both in self._made.items()
            for made, cut in zip(both, self._cut[layer], strict=True)
        ]
        return [made for made, grad in pairs if grad is not None], [grad for _, grad in pairs if grad is not None]


class TreeTables:
    """Attention of one chunk of packed trees."""

    def __init__(
        self,
        packed: PackedTrees,
        chunk: TreeChunk,
        path: Sequence[KeptKeys],
        keep: KeptKeys | None,
        device: torch.device,
        flex: Attention | None = None,
    ) -> None:
        """
        Args:
            path: the chunks before this one whose keys are kept, in order; together they hold its context.
            keep: takes this chunk's keys; None if no later chunk attends to them.
            flex: FlexAttention; None uses other kernels.
        """
        self._packed = packed
        self._chunk = chunk
        self._device = device
        self._keep = keep
        self._reads = _reads(chunk, path, device)
        self._flex = flex
        self._views: dict[object, Any] = {}
        """The tree's mask in the form of each kernel; layers share it."""

    def attend(self, layer: int, q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, scoring: Scoring) -> Tensor:
        if self._keep is not None:
            self._keep.keep(layer, k_HTD, v_HTD)
        keys = [kept.read(layer, indices) for kept, indices in self._reads]
        # Blocks support no window and no softcap.
        if self._flex is None and self._device.type == "cpu" and scoring.window is None and scoring.softcap is None:
            nothing = k_HTD[:, :0]
            context = (torch.cat([k for k, _ in keys] or [nothing], 1), torch.cat([v for _, v in keys] or [nothing], 1))
            if kernels.usable(q_HTD.dtype, self._device, q_HTD.shape[2]):
                reads = self._once("kernel", lambda: reads_of(self._packed, self._chunk))
                return kernels.tree_attention(q_HTD, k_HTD, v_HTD, context, reads, scoring.scale)
            groups = q_HTD.shape[0] // k_HTD.shape[0]
            blocks = self._once(("blocks", groups), lambda: blocks_of(self._packed, self._chunk, groups))
            out: Tensor = _BlockAttention.apply(q_HTD, k_HTD, v_HTD, *context, blocks, scoring.scale)  # type: ignore[no-untyped-call]  # torch
            return out
        if keys:
            k_HTD = torch.cat([*(k for k, _ in keys), k_HTD], 1)
            v_HTD = torch.cat([*(v for _, v in keys), v_HTD], 1)
        mask = self._once(("mask", scoring.window), lambda: self._mask(scoring.window))
        if self._flex is not None:
            return flex_tree_attention(q_HTD, k_HTD, v_HTD, mask, scoring, self._flex).transpose(0, 1)
        return masked_attention(q_HTD, k_HTD, v_HTD, mask, scoring).transpose(0, 1)

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self._views:
            self._views[key] = make()
        return self._views[key]

    def _mask(self, window: int | None) -> FlexMask | Tensor:
        """Return the mask of FlexAttention, or without it [T, C + T]: True where a token sees a key of the context or
        the chunk."""
        seen = seen_in(self._packed, self._chunk, window)
        if self._flex is not None:
            return FlexMask(seen, self._device)
        return on_device(seen.rows(0, seen.query_Q.size), self._device)


def _cut(tensor: Tensor) -> Tensor:
    # A leaf: backward passes of later chunks end here and add to its `grad`.
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _reads(chunk: TreeChunk, path: Sequence[KeptKeys], device: torch.device) -> list[tuple[KeptKeys, slice | Tensor]]:
    """Return the kept keys of the chunk's context, in order; contiguous ones are read without a copy."""
    reads: list[tuple[KeptKeys, slice | Tensor]] = []
    context_C = chunk.context_C
    for kept in path:
        start, stop = kept.chunk.start, kept.chunk.stop
        local = context_C[(context_C >= start) & (context_C < stop)] - start
        if local.size == 0:
            continue
        if int(local[-1]) - int(local[0]) == local.size - 1:
            reads.append((kept, slice(int(local[0]), int(local[-1]) + 1)))
        else:
            reads.append((kept, on_device(local, device)))
    return reads


_SMALLEST = 48
"""Maximum size of a block of several neighbouring subtrees, in tokens: smaller products do not pay."""
_LARGEST = 128
"""Maximum size of a block, in tokens: smaller blocks skip more of the hidden keys, and their scores stay in the
processor's cache."""


@dataclass(frozen=True)
class AttentionBlock:
    """Tokens `rows` of a chunk. They attend to its tokens `own` under a mask, and to `context` context tokens."""

    rows: slice
    own: slice
    context: int
    hidden_RN: Tensor
    """Added to the scores of `own`, once for each query head of a key head: 0, or minus infinity for hidden
    tokens."""


def blocks_of(packed: PackedTrees, chunk: TreeChunk, groups: int) -> list[AttentionBlock]:
    """Return the chunk's subtrees as blocks: neighbours that see the same context together, large ones in parts.

    Args:
        groups: query heads that share a key head.
    """
    blocks = []
    for first, rows in _parts(packed, chunk):
        row_R, own_N = np.arange(rows.start, rows.stop), np.arange(first, rows.stop)
        seen = (own_N <= row_R[:, None]) & (row_R[:, None] < packed.end_T[own_N])
        hidden = np.where(np.tile(seen, (groups, 1)), np.float32(0), np.float32("-inf"))
        blocks.append(
            AttentionBlock(
                rows=slice(rows.start - chunk.start, rows.stop - chunk.start),
                own=slice(first - chunk.start, rows.stop - chunk.start),
                context=int(packed.positions_T[first]),
                hidden_RN=torch.from_numpy(hidden),
            )
        )
    return blocks


def reads_of(packed: PackedTrees, chunk: TreeChunk) -> kernels.TreeReads:
    """Return the same blocks for the C++ attention."""
    start = chunk.start
    blocks = [
        (rows.start - start, rows.stop - start, first - start, rows.stop - start, packed.positions_T[first])
        for first, rows in _parts(packed, chunk)
    ]
    end_T = np.minimum(packed.end_T[start : chunk.stop], chunk.stop) - start
    return kernels.TreeReads(np.array(blocks, np.int64), end_T.astype(np.int32))


def _parts(packed: PackedTrees, chunk: TreeChunk) -> Iterator[tuple[int, range]]:
    """Yield the first token of the subtrees of each block, and the block's rows.

    The rows see the context on the path to that first token.
    """
    for first, last in _spans(packed, chunk):
        for start in range(first, last, _LARGEST):
            yield first, range(start, min(start + _LARGEST, last))


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


class _BlockAttention(torch.autograd.Function):
    """Attention [T, H, D] of a chunk; keys and values of the context [H, C, D] come beside its own."""

    @staticmethod
    def forward(
        ctx: Any,
        q_HTD: Tensor,
        k_HTD: Tensor,
        v_HTD: Tensor,
        ck_HCD: Tensor,
        cv_HCD: Tensor,
        blocks: Sequence[AttentionBlock],
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
        # Many blocks add to the same keys; in 16 bits later summands would be lost.
        grad_k, grad_v, grad_ck, grad_cv = (
            torch.zeros(t.shape, dtype=torch.float32, device=t.device) for t in (k_HTD, v_HTD, ck_HCD, cv_HCD)
        )
        for block in ctx.blocks:
            q_KRD, grad_KRD = (_folded(t[:, block.rows], k_HTD.shape[0]) for t in (q_HTD, grad_HTD))
            keys_KND, values_KND = _seen(ck_HCD, k_HTD, block), _seen(cv_HCD, v_HTD, block)
            weights_KRN = _weights(q_KRD, keys_KND, block, ctx.scale)
            # float32, because the gradient of a softmax is a difference, which cancels where a weight is near 1.
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
    """Return [key heads, groups x T, D]: query heads that share a key head become further rows."""
    return tensor_HTD.reshape(kv_heads, -1, tensor_HTD.shape[-1])


def _seen(context_HCD: Tensor, own_HTD: Tensor, block: AttentionBlock) -> Tensor:
    """Return the keys or values [H, N, D] that a block attends to."""
    keys_HND = own_HTD[:, block.own]
    return torch.cat([context_HCD[:, : block.context], keys_HND], 1) if block.context else keys_HND


def _add(context_HCD: Tensor, own_HTD: Tensor, block: AttentionBlock, more_HND: Tensor) -> None:
    """Add a block's part to the gradient of the keys or values that `_seen` returned for it."""
    context_HCD[:, : block.context] += more_HND[:, : block.context]
    own_HTD[:, block.own] += more_HND[:, block.context :]


def _weights(q_KRD: Tensor, keys_KND: Tensor, block: AttentionBlock, scale: float) -> Tensor:
    """Return probabilities [K, R, N], float32."""
    scores_KRN = (q_KRD.float() * scale) @ keys_KND.float().transpose(1, 2)
    scores_KRN[:, :, block.context :] += block.hidden_RN
    return scores_KRN.softmax(-1)


logger = logging.getLogger(__name__)

_BLOCK: Final = 128
"""Queries, and keys, of a block."""
_NOWHERE: Final = 2**31 - 1
"""Index of a padding key: after every query."""
_TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 1e-2}
"""Maximum relative difference of output and gradients from those of a masked product."""

Attention = Callable[..., Any]
"""`flex_attention`, or what torch compiles of it."""


@dataclass(frozen=True)
class Seen:
    """Visibility in a chunk, of Q queries and K keys: its context's first, then its own."""

    query_Q: npt.NDArray[np.int64]
    """Packed index of each query."""
    first_Q: npt.NDArray[np.int64]
    """First position that each query sees: above 0 under a window."""
    key_K: npt.NDArray[np.int64]
    """Packed index of each key."""
    end_K: npt.NDArray[np.int64]
    """First packed index behind those that see the key."""
    position_K: npt.NDArray[np.int64]
    """Position of each key in its sequence."""

    def rows(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return [stop - start, K], True where a query of `start` to `stop` sees a key."""
        at = self.query_Q[start:stop, None]
        return (self.key_K <= at) & (at < self.end_K) & (self.position_K >= self.first_Q[start:stop, None])


def seen_in(packed: PackedTrees, chunk: TreeChunk, window: int | None) -> Seen:
    """Return the visibility in a chunk of packed trees; a window hides keys that many or more positions back."""
    own_T = np.arange(chunk.start, chunk.stop)
    key_K = np.concatenate([chunk.context_C, own_T])
    positions_T = packed.positions_T[own_T]
    first_T = np.zeros_like(own_T) if window is None else positions_T - (window - 1)
    return Seen(own_T, first_T, key_K, packed.end_T[key_K], packed.positions_T[key_K])


def _whole_blocks(count: int) -> int:
    # At least two: torch compiles again for a length of one.
    return max(2, -(-count // _BLOCK)) * _BLOCK


def padded(seen: Seen) -> Seen:
    """Return the same with queries and keys padded to whole blocks: queries that see what the last one sees, and hidden
    keys. There are never as many keys as queries, as torch would compile again for that."""
    queries, keys = _whole_blocks(seen.query_Q.size), _whole_blocks(seen.key_K.size)
    keys += _BLOCK if keys == queries else 0
    more_q, more_k = (0, queries - seen.query_Q.size), (0, keys - seen.key_K.size)
    return Seen(
        np.pad(seen.query_Q, more_q, mode="edge"),
        np.pad(seen.first_Q, more_q, mode="edge"),
        np.pad(seen.key_K, more_k, constant_values=_NOWHERE),
        np.pad(seen.end_K, more_k),
        np.pad(seen.position_K, more_k),
    )


def _blocks(seen: Seen) -> Iterator[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]:
    """Yield for each block of queries the blocks of keys that it sees in part or in full, and those in full."""
    for start in range(0, seen.query_Q.size, _BLOCK):
        pairs = seen.rows(start, start + _BLOCK).reshape(_BLOCK, -1, _BLOCK)
        yield np.asarray(pairs.any((0, 2))), np.asarray(pairs.all((0, 2)))


class FlexMask:
    """The mask of a chunk for FlexAttention."""

    def __init__(self, seen: Seen, device: torch.device) -> None:
        from torch.nn.attention.flex_attention import BlockMask

        whole = padded(seen)
        self.queries, self.keys = whole.query_Q.size, whole.key_K.size
        query_Q, first_Q, key_K, end_K, position_K = (
            on_device(part.astype(np.int32), device)
            for part in (whole.query_Q, whole.first_Q, whole.key_K, whole.end_K, whole.position_K)
        )

        def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            at = query_Q[q]
            return (key_K[k] <= at) & (at < end_K[k]) & (position_K[k] >= first_Q[q])

        some, every = (np.stack(parts) for parts in zip(*_blocks(whole), strict=True))
        partly, wholly = (_listed(blocks, device) for blocks in (some & ~every, every))
        self.blocks = BlockMask.from_kv_blocks(*partly, *wholly, BLOCK_SIZE=_BLOCK, mask_mod=sees)


def _listed(blocks: npt.NDArray[np.bool_], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the number of key blocks of each query block, and their indices, the listed ones first."""
    order = np.argsort(~blocks, axis=1, kind="stable")
    return tuple(on_device(part.astype(np.int32)[None, None], device) for part in (blocks.sum(1), order))  # type: ignore[return-value]  # of two parts


def flex_tree_attention(
    q_HTD: Tensor, k_HCD: Tensor, v_HCD: Tensor, mask: FlexMask, scoring: Scoring, attention: Attention
) -> Tensor:
    """Return attention [H, T, D]; keys and values, the context's first, may have fewer heads than the queries."""
    heads, tokens, size = q_HTD.shape
    # torch would compile again for each scale in the call; most architectures use its default.
    factor = scoring.scale * size**0.5
    if abs(factor - 1) > 1e-6:
        q_HTD = q_HTD * factor
    q, k, v = (
        torch.nn.functional.pad(part, (0, 0, 0, length - part.shape[1])).contiguous()[None]
        for part, length in ((q_HTD, mask.queries), (k_HCD, mask.keys), (v_HCD, mask.keys))
    )
    # A tensor, as torch would compile again for each number.
    cap_H = torch.full((heads,), scoring.softcap or 0.0, device=q.device)

    def capped(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.tanh(score / cap_H[head]) * cap_H[head]

    score_mod = None if scoring.softcap is None else capped
    out: Tensor = attention(q, k, v, score_mod=score_mod, block_mask=mask.blocks, enable_gqa=True)
    return out[0, :, :tokens]


def flex_on(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int) -> Attention | None:
    """Return FlexAttention compiled for a CUDA device, if it is correct for tensors of this kind; else None.

    For other devices torch has no backward pass of it.
    """
    if device.type != "cuda":
        return None
    compiled = _compiled()
    return compiled if trusted(compiled, device, dtype, heads, key_heads, size) else None


@functools.cache
def _compiled() -> Attention:
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Attention = torch.compile(flex_attention, dynamic=True)
    return compiled


@functools.cache
def trusted(
    attention: Attention, device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int
) -> bool:
    """Return True if `attention` equals a masked product, forward and backward, for tensors of this kind.

    The first call compiles it, and logs that.
    """
    logger.info("compiling attention over trees for this device, once")
    began = time.monotonic()
    try:
        difference = _difference(attention, device, dtype, heads, key_heads, size)
    except Exception as error:  # from the compiler, from Triton, or because the device is too old
        logger.warning("attention over trees uses whole masks, which is slower: %s", error)
        return False
    if not difference <= _TOLERANCE.get(dtype, 0.0):
        logger.warning("attention over trees uses whole masks: the compiled kernel differs by %.3g", difference)
        return False
    logger.info("compiled in %.0f s", time.monotonic() - began)
    return True


def _difference(
    attention: Attention, device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int
) -> float:
    """Return the largest relative difference from a masked product, for three branches behind one trunk."""
    trunk, branch, count = 150, 50, 3
    index = np.arange(trunk + count * branch)
    end = np.where(index < trunk, index.size, trunk + (index - trunk) // branch * branch + branch)
    at = np.where(index < trunk, index, trunk + (index - trunk) % branch)
    seen = Seen(index, np.zeros_like(index), index, end, at)
    scoring = Scoring(size**-0.5, None, None)
    generator = torch.Generator().manual_seed(0)  # the global generator may have been seeded
    shapes = [(head, index.size, size) for head in (heads, key_heads, key_heads, heads)]
    *inputs, weights = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    pairs = on_device(seen.rows(0, index.size), device)
    mask = FlexMask(seen, device)
    ways: tuple[Callable[[Tensor, Tensor, Tensor], Tensor], ...] = (
        lambda q, k, v: flex_tree_attention(q, k, v, mask, scoring, attention),
        lambda q, k, v: masked_attention(q, k, v, pairs, scoring),
    )
    results = []
    with torch.enable_grad():
        for compute in ways:
            leaves = [part.clone().requires_grad_() for part in inputs]
            out = compute(*leaves)
            results.append([out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)])
    return max(float((x - y).float().norm() / y.float().norm()) for x, y in zip(*results, strict=True))
