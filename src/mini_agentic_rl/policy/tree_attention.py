"""Attention inside packed trees, for learning: t sees s when s is t or an ancestor of t.

Trees are computed chunk by chunk. A chunk's queries look at its own keys and at those of its context, the path above
it, which an earlier chunk has computed and kept. Kept keys are cut off from the graph that made them: the gradients of
all that look at them gather there, and go on into that graph when its turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mini_agentic_rl.tokens import PackedTrees, TreeChunk

from .attention import Scoring, masked_attention
from .block_attention import Block, block_attention, blocks_of


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
        packed: PackedTrees,
        chunk: TreeChunk,
        path: Sequence[KeptKeys],
        keep: KeptKeys | None,
        device: torch.device,
    ) -> None:
        """
        Args:
            path: the chunks before this one whose keys are kept, in order; together they hold its context.
            keep: where this chunk's own keys go.
        """
        self._packed = packed
        self._chunk = chunk
        self._device = device
        self._keep = keep
        self._reads = _reads(chunk, path, device)
        self._blocks: dict[int, list[Block]] = {}
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, layer: int, q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, scoring: Scoring) -> Tensor:
        if self._keep is not None:
            self._keep.keep(layer, k_HTD, v_HTD)
        keys = [kept.read(layer, indices) for kept, indices in self._reads]
        if self._device.type == "cpu" and scoring.window is None and scoring.softcap is None:
            nothing = k_HTD[:, :0]
            context = (torch.cat([k for k, _ in keys] or [nothing], 1), torch.cat([v for _, v in keys] or [nothing], 1))
            blocks = self._blocks_for(q_HTD.shape[0] // k_HTD.shape[0])
            return block_attention(q_HTD, k_HTD, v_HTD, context, blocks, scoring.scale)
        if keys:
            k_HTD = torch.cat([*(k for k, _ in keys), k_HTD], 1)
            v_HTD = torch.cat([*(v for _, v in keys), v_HTD], 1)
        return masked_attention(q_HTD, k_HTD, v_HTD, self._mask(scoring.window), scoring).transpose(0, 1)

    def _blocks_for(self, groups: int) -> list[Block]:
        if groups not in self._blocks:
            self._blocks[groups] = blocks_of(self._packed, self._chunk, groups)
        return self._blocks[groups]

    def _mask(self, window: int | None) -> Tensor:
        """[T, C + T]: which keys, of the context and the chunk's own, each token sees."""
        if window not in self._masks:
            own_T = np.arange(self._chunk.start, self._chunk.stop)
            keys_K = np.concatenate([self._chunk.context_C, own_T])
            mask_TK = (keys_K <= own_T[:, None]) & (own_T[:, None] < self._packed.end_T[keys_K])
            if window is not None:
                positions_T = self._packed.positions_T
                mask_TK &= positions_T[own_T][:, None] - positions_T[keys_K] < window
            self._masks[window] = torch.from_numpy(mask_TK).to(self._device)
        return self._masks[window]


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
