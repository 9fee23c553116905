"""Attention of sampling, over the block cache: a chunk of each prompt, and one token of each decoding sequence.

Shared prefixes are read once. Sequences with the same prefix (a system prompt, a task that is sampled several times)
hold the same cache blocks. `shared_runs` finds these blocks, the queries of all sequences that share a run are
multiplied with its keys in one matrix product, and the softmax is merged with that over a sequence's other keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import kernels
from .attention import Scoring, hiding, masked_attention, partial_attention
from .kv_cache import KVPool


@dataclass(frozen=True)
class Chunk:
    """New tokens of one prompt: their packed indices start..stop, and the cache slots of all tokens up to the last."""

    start: int
    stop: int
    slots: Tensor


class PagedTables:
    """Attention of one step. Packed order: chunks of prompts first, then one token for each decoding sequence."""

    def __init__(
        self, pool: KVPool, slots: Tensor, sources: Tensor | None, chunks: list[Chunk], decode: DecodeTables | None
    ) -> None:
        """
        Args:
            slots: cache slots that new keys and values are written to.
            sources: packed index that each of them is taken from; None is their order.
        """
        self._pool = pool
        self._slots = slots
        self._sources = sources
        self._chunks = chunks
        self._decode = decode
        self._masks: dict[int | None, list[Tensor]] = {}
        self._kernel_reads: kernels.PagedReads | None = None

    def attend(self, layer: int, q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, scoring: Scoring) -> Tensor:
        if kernels.usable(q_HTD.dtype, self._pool.device, q_HTD.shape[2]):
            cache_CW = (self._pool.keys[layer], self._pool.values[layer])
            return kernels.paged_attention(
                *(q_HTD, k_HTD, v_HTD, cache_CW, self.reads(q_HTD.shape[1])),
                scale=scoring.scale,
                window=scoring.window,
                softcap=scoring.softcap,
            )
        # Written before reading: a token sees itself, and sequences of a pass may share blocks.
        fresh_keys, fresh_values = k_HTD.transpose(0, 1), v_HTD.transpose(0, 1)
        if self._sources is not None:
            fresh_keys, fresh_values = fresh_keys[self._sources], fresh_values[self._sources]
        self._pool.write(layer, self._slots, fresh_keys, fresh_values)
        out_THD = torch.empty_like(q_HTD.transpose(0, 1), memory_format=torch.contiguous_format)
        for chunk, mask in zip(self._chunks, self._masks_for(scoring.window), strict=True):
            keys, values = self._pool.read(layer, chunk.slots)
            new = slice(chunk.start, chunk.stop)
            out_HTD = masked_attention(q_HTD[:, new], keys.transpose(0, 1), values.transpose(0, 1), mask, scoring)
            out_THD[new] = out_HTD.transpose(0, 1)
        if self._decode is not None:
            batch = self._decode.batch
            out_THD[-batch:] = self._decode.attend(self._pool, layer, q_HTD[:, -batch:], scoring).transpose(0, 1)
        return out_THD

    @property
    def cache_LCW(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all layers."""
        return self._pool.keys, self._pool.values

    def reads(self, tokens: int) -> kernels.PagedReads:
        """Return the slots that each row of the pass reads, for the C++ attention."""
        if self._kernel_reads is None:
            reads = self._kernel_reads = kernels.PagedReads(tokens, self._slots, self._sources)
            for chunk in self._chunks:
                reads.read_prompt(range(chunk.start, chunk.stop), chunk.slots.numpy())
            if self._decode is not None:
                self._decode.read_by(reads, tokens - self._decode.batch)
        return self._kernel_reads

    def _masks_for(self, window: int | None) -> list[Tensor]:
        if window not in self._masks:
            self._masks[window] = [
                _causal_mask(chunk.stop - chunk.start, chunk.slots, window) for chunk in self._chunks
            ]
        return self._masks[window]


def _causal_mask(new: int, slots: Tensor, window: int | None) -> Tensor:
    """Return [new, slots], True where a new token sees a key: itself, and those before it within the window."""
    total = slots.numel()
    key = torch.arange(total, device=slots.device)[None, :]
    query = torch.arange(total - new, total, device=slots.device)[:, None]
    visible = key <= query
    return visible if window is None else visible & (query - key < window)


_WORTHWHILE = 64
"""Tokens that reading a run once has to save; below, the additional product costs more."""
_GATHERED_ON_CPU = 4096
"""Tokens that are gathered at once on the CPU, so that they stay in its cache until the product reads them."""
GATHERED = 2**16
"""Tokens that are gathered at once on a GPU: bounds the memory of one layer's attention."""
_ALONE = 256
"""Fixed cost of a run of a single sequence, in gathered tokens."""


@dataclass(frozen=True)
class SharedRun:
    """Cache blocks `first`..`last` that the neighbouring sequences `rows` share."""

    rows: slice
    first: int
    last: int


def shared_runs(tables: Sequence[Sequence[int]], block_size: int) -> list[SharedRun]:
    """Return the runs that are worth reading once, those of more sequences first. The runs of a sequence are
    contiguous, from its first block on.

    Blocks in no run are gathered for all sequences with one width. So if a few histories are much longer than the
    rest, the surplus of each is a run of a single sequence.

    Args:
        tables: block ids of each sequence, in ascending order, so that common prefixes are neighbours; only
            blocks that may be shared.
    """
    runs = list(_runs(tables, range(len(tables)), 0, block_size))
    held = [0] * len(tables)
    for run in runs:
        held[run.rows] = [run.last] * (run.rows.stop - run.rows.start)
    rest = [len(table) - last for table, last in zip(tables, held, strict=True)]
    width = _width(np.array(rest), _ALONE // block_size)
    for row, (last, blocks) in enumerate(zip(held, rest, strict=True)):
        if blocks > width:
            runs.append(SharedRun(slice(row, row + 1), last, last + blocks - width))
    return runs


def _width(blocks_B: np.ndarray, of_a_run: int) -> int:
    """Return the cheapest number of blocks to gather of each sequence, with the surplus read as runs."""
    widths = np.sort(blocks_B)
    longer = np.arange(widths.size)[::-1]
    beyond = widths.sum() - widths.cumsum() - longer * widths
    return int(widths[np.argmin(widths.size * widths + beyond + longer * of_a_run)])


def _runs(tables: Sequence[Sequence[int]], rows: range, first: int, block_size: int) -> Iterator[SharedRun]:
    if len(rows) < 2:
        return
    # In ascending order, all neighbours share what the outermost two share.
    low, high = tables[rows[0]], tables[rows[-1]]
    last = first
    while last < min(len(low), len(high)) and low[last] == high[last]:
        last += 1
    if (len(rows) - 1) * (last - first) * block_size >= _WORTHWHILE:
        yield SharedRun(slice(rows.start, rows.stop), first, last)
        first = last
    for key, group in groupby(rows, lambda row: tables[row][last] if len(tables[row]) > last else None):
        if key is not None:
            members = list(group)
            yield from _runs(tables, range(members[0], members[-1] + 1), first, block_size)


@dataclass(frozen=True)
class SharedKeys:
    """A shared run with the cache slots and the positions of its P tokens."""

    rows: slice
    slots_P: Tensor | slice
    positions_P: Tensor


class DecodeTables:
    """The cache slots of the histories of B decoding sequences."""

    def __init__(self, shared: Sequence[SharedKeys], own_BC: Tensor, first_B: Tensor, lengths_B: Tensor) -> None:
        """
        Args:
            shared: runs that are read once for several sequences.
            own_BC: [B, C] cache slots of the rest of each history; past its end any slot, which is masked.
            first_B: [B] position of the first token in `own_BC`.
            lengths_B: [B] tokens in each history, the shared ones and the new one included.
        """
        self._shared = shared
        self._own_BC = own_BC
        self._first_B = first_B
        self._lengths_B = lengths_B
        self._own_masks: dict[int | None, Tensor] = {}

    @property
    def batch(self) -> int:
        """B, the number of sequences."""
        return self._own_BC.shape[0]

    def read_by(self, reads: kernels.PagedReads, first_row: int) -> None:
        """Enter the same slots into `reads`, for the C++ attention; the sequences' rows begin at `first_row`."""
        for keys in self._shared:
            rows = range(first_row + keys.rows.start, first_row + keys.rows.stop)
            slots_P = keys.slots_P
            positions = np.arange(slots_P.start, slots_P.stop) if isinstance(slots_P, slice) else slots_P.numpy()
            reads.read(rows, positions, int(keys.positions_P[0]))
        for row, (own_C, first, length) in enumerate(
            zip(self._own_BC.numpy(), self._first_B.tolist(), self._lengths_B.tolist(), strict=True)
        ):
            reads.see(first_row + row, length)
            reads.read(range(first_row + row, first_row + row + 1), own_C[: length - first], first)

    def attend(self, pool: KVPool, layer: int, q_HBD: Tensor, scoring: Scoring) -> Tensor:
        """Return [H, B, D] for queries [H, B, D]; the keys have fewer heads under grouped-query attention."""
        heads, batch, size = q_HBD.shape
        # K key heads, each with the G query heads that share it.
        q_BKGD = q_HBD.view(pool.heads, heads // pool.heads, batch, size).permute(2, 0, 1, 3)
        out_BKGD, own_lse_BKG = self._over_own(pool, layer, q_BKGD, scoring)
        if own_lse_BKG is not None:
            # Merge the softmax of the parts: the weight of a part is exp(its log-sum-exp - that of the whole), in
            # float32, as 16 bits are too few for large sums.
            lse_BKG = own_lse_BKG.clone()
            parts = [self._over_run(pool, layer, keys, q_BKGD, scoring) for keys in self._shared]
            for keys, (_, run_lse_RKG) in zip(self._shared, parts, strict=True):
                lse_BKG[keys.rows] = torch.logaddexp(lse_BKG[keys.rows], run_lse_RKG)
            out_BKGD = out_BKGD * torch.exp(own_lse_BKG - lse_BKG)[..., None].to(out_BKGD.dtype)
            for keys, (run_RKGD, run_lse_RKG) in zip(self._shared, parts, strict=True):
                weight_RKG = torch.exp(run_lse_RKG - lse_BKG[keys.rows])
                out_BKGD[keys.rows].addcmul_(run_RKGD, weight_RKG[..., None].to(run_RKGD.dtype))
        return out_BKGD.permute(1, 2, 0, 3).reshape(heads, batch, size)

    def _over_own(self, pool: KVPool, layer: int, q_BKGD: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor | None]:
        """Return attention [B, K, G, D] of each sequence over the keys that it alone reads, and its log-sum-exp
        [B, K, G]; None if there are no other keys."""
        mask_B11C = self._own_mask(scoring.window, q_BKGD.dtype)
        batch, width = self._own_BC.shape
        rows = max(1, (_GATHERED_ON_CPU if pool.device.type == "cpu" else GATHERED) // width)
        out_BKGD = q_BKGD.new_empty(q_BKGD.shape)
        lse_BKG = q_BKGD.new_empty(q_BKGD.shape[:-1], dtype=torch.float32) if self._shared else None
        for start in range(0, batch, rows):
            some = slice(start, start + rows)
            keys_RCKD, values_RCKD = pool.read(layer, self._own_BC[some])
            parts = (q_BKGD[some], keys_RCKD.transpose(1, 2), values_RCKD.transpose(1, 2))
            if lse_BKG is not None or scoring.softcap is not None:
                out_BKGD[some], lse_RKG = partial_attention(*parts, mask_B11C[some], scoring)
                if lse_BKG is not None:
                    lse_BKG[some] = lse_RKG
            else:  # torch's fused attention, which returns no log-sum-exp and has no softcap
                mask_R11C = mask_B11C[some]
                out_BKGD[some] = F.scaled_dot_product_attention(*parts, attn_mask=mask_R11C, scale=scoring.scale)
        return out_BKGD, lse_BKG

    def _over_run(
        self, pool: KVPool, layer: int, keys: SharedKeys, q_BKGD: Tensor, scoring: Scoring
    ) -> tuple[Tensor, Tensor]:
        """Return attention [R, K, G, D] of the R sequences of a run over that run, and its log-sum-exp [R, K, G]."""
        keys_PKD, values_PKD = pool.read(layer, keys.slots_P)
        q_RKGD = q_BKGD[keys.rows]
        rows, kv_heads, groups, size = q_RKGD.shape
        # The queries of all sequences and heads of a key head become rows of one product.
        q_KQD = q_RKGD.transpose(0, 1).reshape(kv_heads, rows * groups, size)
        mask_QP = self._run_mask(keys, scoring.window, groups, q_BKGD.dtype)
        keys_KPD, values_KPD = keys_PKD.transpose(0, 1), values_PKD.transpose(0, 1)
        out_1KQD, lse_1KQ = partial_attention(q_KQD[None], keys_KPD[None], values_KPD[None], mask_QP, scoring)
        out_RKGD = out_1KQD.view(kv_heads, rows, groups, size).transpose(0, 1)
        return out_RKGD, lse_1KQ.view(kv_heads, rows, groups).transpose(0, 1)

    def _own_mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Return [B, 1, 1, C], an additive mask of the unshared keys that a new token does not see."""
        if window not in self._own_masks:
            place_1C = torch.arange(self._own_BC.shape[1], device=self._own_BC.device)[None, :]
            lengths_B1 = (self._lengths_B - self._first_B)[:, None]
            hidden_BC = place_1C >= lengths_B1
            if window is not None:
                hidden_BC |= place_1C < lengths_B1 - window
            self._own_masks[window] = hiding(hidden_BC, dtype)[:, None, None, :]
        return self._own_masks[window]

    def _run_mask(self, keys: SharedKeys, window: int | None, groups: int, dtype: torch.dtype) -> Tensor | None:
        """Return [R x G, P], an additive mask of the run's tokens outside the window; None without a window."""
        if window is None:
            return None
        first_R1 = self._lengths_B[keys.rows, None] - window
        return hiding(keys.positions_P[None, :] < first_R1, dtype).repeat_interleave(groups, 0)
