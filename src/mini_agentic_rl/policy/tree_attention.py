"""Attention inside packed trees, for learning: t sees s when s is t or an ancestor of t.

Trees are computed chunk by chunk. A chunk's queries look at its own keys and at those of its context, the path above
it, which an earlier chunk has computed and kept. Kept keys are cut off from the graph that made them: the gradients of
all that look at them gather there, and go on into that graph when its turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mini_agentic_rl.tokens import TreeChunk

from .attention import Scoring, masked_attention


class KeptKeys:
    """Keys and values of one chunk, layer by layer, that later chunks look at."""

    def __init__(self, chunk: TreeChunk) -> None:
        self.chunk = chunk
        self._made: dict[int, tuple[Tensor, Tensor]] = {}
        self._cut: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(self, layer: int, k_HTD: Tensor, v_HTD: Tensor) -> None:
        """Take a layer's keys and values; a second time is a checkpoint that computes them again, and is ignored."""
        if layer not in self._made:
            self._made[layer] = (k_HTD, v_HTD)
            self._cut[layer] = (_cut(k_HTD), _cut(v_HTD))

    def read(self, layer: int, indices: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Those at `indices` of the chunk: [H, C, D] each."""
        k_HTD, v_HTD = self._cut[layer]
        if isinstance(indices, slice):
            return k_HTD[:, indices], v_HTD[:, indices]
        return k_HTD.index_select(1, indices), v_HTD.index_select(1, indices)

    def gathered(self) -> tuple[list[Tensor], list[Tensor]]:
        """What later chunks' gradients flow into, and those gradients."""
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
        chunk: TreeChunk,
        positions_T: Tensor,
        end_T: Tensor,
        path: Sequence[KeptKeys],
        keep: KeptKeys | None,
    ) -> None:
        """
        Args:
            positions_T: of the whole pack.
            end_T: of the whole pack.
            path: the chunks before this one whose keys are kept, in order; together they hold its context.
            keep: where this chunk's own keys go.
        """
        device = end_T.device
        self._keep = keep
        self._reads = _reads(chunk, path, device)
        own = torch.arange(chunk.start, chunk.stop, device=device)
        keys = torch.cat([torch.from_numpy(chunk.context_C).to(device), own])
        self._mask_TK = (keys[None, :] <= own[:, None]) & (own[:, None] < end_T[keys][None, :])
        self._query_T, self._key_K = positions_T[own], positions_T[keys]
        self._windowed: dict[int, Tensor] = {}

    def attend(self, layer: int, q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, scoring: Scoring) -> Tensor:
        if self._keep is not None:
            self._keep.keep(layer, k_HTD, v_HTD)
        parts = [kept.read(layer, indices) for kept, indices in self._reads]
        if parts:
            k_HTD = torch.cat([*(k for k, _ in parts), k_HTD], 1)
            v_HTD = torch.cat([*(v for _, v in parts), v_HTD], 1)
        return masked_attention(q_HTD, k_HTD, v_HTD, self._mask(scoring.window), scoring).transpose(0, 1)

    def _mask(self, window: int | None) -> Tensor:
        if window is None:
            return self._mask_TK
        if window not in self._windowed:
            near_TK = self._query_T[:, None] - self._key_K[None, :] < window
            self._windowed[window] = self._mask_TK & near_TK
        return self._windowed[window]


def _cut(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _reads(chunk: TreeChunk, path: Sequence[KeptKeys], device: torch.device) -> list[tuple[KeptKeys, slice | Tensor]]:
    """Which kept keys make up the chunk's context, in order; runs are read without a copy."""
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
            reads.append((kept, torch.from_numpy(local).to(device)))
    return reads
