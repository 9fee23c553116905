"""A step of the engine as tensors: the tokens that the model sees, the slots of their keys, and who reads which state.

Packed order: prefill chunks first, then one token for each decoding sequence. A segment with a twin adds no token; it
gets copies of its twin's keys and values in its own cache slots, and draws from its twin's hidden state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .kv_cache import KVPool
from .sampling_attention import Chunk, DecodeTables, PagedTables, SharedKeys, shared_runs
from .scheduler import Segment, StepPlan


@dataclass(frozen=True)
class StepBatch:
    """The tokens of one forward pass, their positions, and their attention."""

    tokens_T: Tensor
    positions_T: Tensor
    tables: PagedTables
    starts: dict[Segment, int]
    """Index of the first token of each computed segment."""

    def index_of(self, segment: Segment) -> int:
        """Return the packed index of a segment's last token."""
        return _index(self.starts, segment, segment.stop - 1)


def pack_step(plan: StepPlan, pool: KVPool, block_size: int) -> StepBatch:
    """Lay out the segments of `plan`, whose cache slots are in `pool`."""
    device = pool.device
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[np.ndarray] = []
    chunks: list[Chunk] = []
    starts: dict[Segment, int] = {}
    for segment in (p for p in plan.prefill if p.twin is None):
        own = _slots(segment, block_size)
        starts[segment] = len(tokens)
        tokens.extend(segment.sequence.tokens[segment.start : segment.stop])
        positions.extend(range(segment.start, segment.stop))
        slots.append(own[segment.start :])
        chunks.append(Chunk(starts[segment], len(tokens), torch.from_numpy(own).to(device)))
    # In the order of their blocks, so that those that begin alike stand side by side, as `shared_runs` needs.
    decoding = sorted((p for p in plan.decode if p.twin is None), key=lambda segment: segment.sequence.table.blocks)
    decode: DecodeTables | None = None
    if decoding:
        decode, new_slots = _decode(decoding, block_size, device)
        slots.append(new_slots)
        starts.update(zip(decoding, range(len(tokens), len(tokens) + len(decoding)), strict=True))
        tokens.extend(segment.sequence.tokens[-1] for segment in decoding)
        positions.extend(segment.stop - 1 for segment in decoding)
    # A twin's keys are copied into its own slots: its blocks may be private, and outlive the other sequence.
    twins = [p for p in (*plan.prefill, *plan.decode) if p.twin is not None]
    sources = list(range(len(tokens))) if twins else []
    for segment in twins:
        sources.extend(_index(starts, segment, position) for position in range(segment.start, segment.stop))
        slots.append(_slots(segment, block_size)[segment.start :])
    tables = PagedTables(
        pool,
        torch.from_numpy(np.concatenate(slots)).to(device),
        torch.tensor(sources, device=device) if twins else None,
        chunks,
        decode,
    )
    return StepBatch(torch.tensor(tokens, device=device), torch.tensor(positions, device=device), tables, starts)


def _index(starts: dict[Segment, int], segment: Segment, position: int) -> int:
    """Return the packed index of the token at `position`, in the segment's twin where it has one."""
    computed = segment.twin or segment
    return starts[computed] + position - computed.start


def _slots(segment: Segment, block_size: int) -> np.ndarray:
    """Return the cache slots of every position up to the segment's end."""
    blocks = np.array(segment.sequence.table.blocks, np.int64)
    return (blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)[: segment.stop]


def _decode(segments: list[Segment], block_size: int, device: torch.device) -> tuple[DecodeTables, np.ndarray]:
    """Return the places of the decoding sequences' histories, and the slots of their new tokens."""
    tables = [segment.sequence.table.blocks for segment in segments]
    lengths = np.array([segment.stop for segment in segments], np.int64)
    width = max(len(table) for table in tables)
    blocks = np.zeros((len(segments), width), np.int64)
    for row, table in enumerate(tables):
        blocks[row, : len(table)] = table
    slots = (blocks[:, :, None] * block_size + np.arange(block_size)).reshape(len(segments), -1)
    # The block that the new token goes to is being written, so it is never shared.
    runs = shared_runs(
        [table[: (segment.stop - 1) // block_size] for table, segment in zip(tables, segments, strict=True)], block_size
    )
    first = np.zeros(len(segments), np.int64)
    shared = []
    for run in runs:
        first[run.rows] = run.last * block_size
        taken = slice(run.first * block_size, run.last * block_size)
        shared.append(
            SharedKeys(
                run.rows,
                _run_of(slots[run.rows.start, taken], device),
                torch.arange(taken.start, taken.stop, device=device),
            )
        )
    # Rows of one width: a shorter history repeats its last slots, which the mask hides.
    own = first[:, None] + np.arange(int((lengths - first).max()))
    own = np.take_along_axis(slots, np.minimum(own, slots.shape[1] - 1), 1)
    decode = DecodeTables(
        shared,
        torch.from_numpy(own).to(device),
        torch.from_numpy(first).to(device),
        torch.from_numpy(lengths).to(device),
    )
    return decode, slots[np.arange(len(segments)), lengths - 1]


def _run_of(slots: np.ndarray, device: torch.device) -> torch.Tensor | slice:
    """Return slots that follow each other as a slice, which is read without a copy."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first == slots.size - 1 and bool((np.diff(slots) == 1).all()):
        return slice(first, last + 1)
    return torch.from_numpy(slots).to(device)
