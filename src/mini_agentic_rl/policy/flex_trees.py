"""Attention over trees by torch's FlexAttention: one fused kernel that skips the blocks in which nobody sees anybody.

A token sees itself and its ancestors: t sees s when s <= t < end[s] (tokens/packing.py). That rule is compiled into the
kernel, and from the same intervals come the blocks of 128 queries by 128 keys in which some pairs, or all, see each
other (FlexAttention; Dong et al. 2024, arXiv 2412.05496). The backward pass is fused as well, and keeps no weights.

torch compiles the kernel once, for any number of tokens; before its first use it is compared with a masked product.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..tokens import PackedTrees, TreeChunk
from .attention import Scoring, masked_attention
from .device_copies import on_device

logger = logging.getLogger(__name__)

_BLOCK: Final = 128
"""Queries, and keys, of a block."""
_NOWHERE: Final = 2**31 - 1
"""Index of a key that only fills up: behind every query."""
_APART: Final = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 1e-2}
"""Most that output and gradients may differ from those of a masked product, as a share of their length."""

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
    """Return who sees whom in a chunk of packed trees; under a window only what is less than so many positions back."""
    own_T = np.arange(chunk.start, chunk.stop)
    key_K = np.concatenate([chunk.context_C, own_T])
    positions_T = packed.positions_T[own_T]
    first_T = np.zeros_like(own_T) if window is None else positions_T - (window - 1)
    return Seen(own_T, first_T, key_K, packed.end_T[key_K], packed.positions_T[key_K])


def _whole_blocks(count: int) -> int:
    # At least two: torch compiles apart what has the length one, and every compilation is a wait.
    return max(2, -(-count // _BLOCK)) * _BLOCK


def filled_up(seen: Seen) -> Seen:
    """Return the same with queries and keys filled up to whole blocks: queries that see what the last one sees, and
    keys that nobody sees.

    There are never as many keys as queries, as torch would compile that apart too.
    """
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
    """Yield for each block of queries the blocks of keys of which it sees something, and those of which it sees all."""
    for start in range(0, seen.query_Q.size, _BLOCK):
        pairs = seen.rows(start, start + _BLOCK).reshape(_BLOCK, -1, _BLOCK)
        yield np.asarray(pairs.any((0, 2))), np.asarray(pairs.all((0, 2)))


class FlexMask:
    """The mask of one chunk, as FlexAttention takes it."""

    def __init__(self, seen: Seen, device: torch.device) -> None:
        from torch.nn.attention.flex_attention import BlockMask

        whole = filled_up(seen)
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
    """Return how many blocks of keys each block of queries has, and which, those first."""
    order = np.argsort(~blocks, axis=1, kind="stable")
    return tuple(on_device(part.astype(np.int32)[None, None], device) for part in (blocks.sum(1), order))  # type: ignore[return-value]  # of two parts


def flex_tree_attention(
    q_HTD: Tensor, k_HCD: Tensor, v_HCD: Tensor, mask: FlexMask, scoring: Scoring, attention: Attention
) -> Tensor:
    """Return attention [H, T, D]; keys and values, the context's first, may have fewer heads than the queries."""
    heads, tokens, size = q_HTD.shape
    # A scale in the call would be a number that torch compiles for; its own is the one that most architectures have.
    factor = scoring.scale * size**0.5
    if abs(factor - 1) > 1e-6:
        q_HTD = q_HTD * factor
    q, k, v = (
        torch.nn.functional.pad(part, (0, 0, 0, length - part.shape[1])).contiguous()[None]
        for part, length in ((q_HTD, mask.queries), (k_HCD, mask.keys), (v_HCD, mask.keys))
    )
    capped = _capped(scoring.softcap, heads, q.device)
    out: Tensor = attention(q, k, v, score_mod=capped, block_mask=mask.blocks, enable_gqa=True)
    return out[0, :, :tokens]


def _capped(softcap: float | None, heads: int, device: torch.device) -> Callable[..., Tensor] | None:
    """Return what squashes the scores."""
    if softcap is None:
        return None
    # A tensor, as torch would compile for each number.
    cap_H = torch.full((heads,), softcap, device=device)

    def capped(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.tanh(score / cap_H[head]) * cap_H[head]

    return capped


def flex_on(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int) -> Attention | None:
    """Return FlexAttention, compiled for a CUDA device, where it can be trusted with tensors of this kind; else None.

    Elsewhere torch has no backward pass of it.
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
    """Return True if `attention` gives what a masked product gives, forward and backward, for tensors of this kind.

    The first time it is compiled, which the log announces.
    """
    logger.info("compiling attention over trees for this device, once")
    began = time.monotonic()
    try:
        apart = _apart(attention, device, dtype, heads, key_heads, size)
    except Exception as error:  # of any kind: the compiler's, Triton's, that of a device too old for it
        logger.warning("attention over trees goes on with whole masks, which is slower: %s", error)
        return False
    if not apart <= _APART.get(dtype, 0.0):
        logger.warning("attention over trees goes on with whole masks: compiled, it is %.3g apart from them", apart)
        return False
    logger.info("compiled in %.0f s", time.monotonic() - began)
    return True


def _apart(
    attention: Attention, device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int
) -> float:
    """Return how far output and gradients are from those of a masked product, of three branches behind one trunk."""
    trunk, branch, count = 150, 50, 3
    index = np.arange(trunk + count * branch)
    end = np.where(index < trunk, index.size, trunk + (index - trunk) // branch * branch + branch)
    at = np.where(index < trunk, index, trunk + (index - trunk) % branch)
    seen = Seen(index, np.zeros_like(index), index, end, at)
    scoring = Scoring(size**-0.5, None, None)
    generator = torch.Generator().manual_seed(0)  # of its own, as others may have seeded torch's
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
    return max(float((one - two).float().norm() / two.float().norm()) for one, two in zip(*results, strict=True))
