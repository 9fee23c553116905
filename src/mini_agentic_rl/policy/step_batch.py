"""The tensors of one engine step: which tokens the model sees, where their keys go, and who reads which hidden state.

Packed order: prefill chunks first, then one token for each decoding sequence. A piece with a twin adds no token; it
gets copies of its twin's keys and values in its own cache slots, and draws from its twin's hidden state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .kv_cache import KVPool
from .sampling_attention import Chunk, DecodeTables, PagedTables, SharedKeys, shared_runs
from .scheduler import Piece, StepPlan


@dataclass(frozen=True)
class StepBatch:
    """What one forward pass computes."""

    tokens_T: Tensor
    positions_T: Tensor
    tables: PagedTables
    starts: dict[Piece, int]
    """Index of the first token of each computed piece."""

    def index_of(self, piece: Piece) -> int:
        """Index of the last token of a piece."""
        return _index(self.starts, piece, piece.stop - 1)


def pack_step(plan: StepPlan, pool: KVPool, block_size: int) -> StepBatch:
    """Lay out the pieces of `plan`, whose cache slots are in `pool`."""
    device = pool.device
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[np.ndarray] = []
    chunks: list[Chunk] = []
    starts: dict[Piece, int] = {}
    for piece in (p for p in plan.prefill if p.twin is None):
        own = _slots(piece, block_size)
        starts[piece] = len(tokens)
        tokens.extend(piece.sequence.tokens[piece.start : piece.stop])
        positions.extend(range(piece.start, piece.stop))
        slots.append(own[piece.start :])
        chunks.append(Chunk(starts[piece], len(tokens), torch.from_numpy(own).to(device)))
    # Those that begin alike stand side by side.
    decoding = sorted((p for p in plan.decode if p.twin is None), key=lambda piece: piece.sequence.table.blocks)
    decode: DecodeTables | None = None
    if decoding:
        decode, new_slots = _decode(decoding, block_size, device)
        slots.append(new_slots)
        starts.update(zip(decoding, range(len(tokens), len(tokens) + len(decoding)), strict=True))
        tokens.extend(piece.sequence.tokens[-1] for piece in decoding)
        positions.extend(piece.stop - 1 for piece in decoding)
    twins = [p for p in (*plan.prefill, *plan.decode) if p.twin is not None]
    sources = list(range(len(tokens))) if twins else []
    for piece in twins:
        sources.extend(_index(starts, piece, position) for position in range(piece.start, piece.stop))
        slots.append(_slots(piece, block_size)[piece.start :])
    tables = PagedTables(
        pool,
        torch.from_numpy(np.concatenate(slots)).to(device),
        torch.tensor(sources, device=device) if twins else None,
        chunks,
        decode,
    )
    return StepBatch(torch.tensor(tokens, device=device), torch.tensor(positions, device=device), tables, starts)


def _index(starts: dict[Piece, int], piece: Piece, position: int) -> int:
    """Index of the token at `position`, in the piece's twin where it has one."""
    computed = piece.twin or piece
    return starts[computed] + position - computed.start


def _slots(piece: Piece, block_size: int) -> np.ndarray:
    """Cache slots of every position up to the piece's end."""
    blocks = np.array(piece.sequence.table.blocks, np.int64)
    return (blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)[: piece.stop]


def _decode(pieces: list[Piece], block_size: int, device: torch.device) -> tuple[DecodeTables, np.ndarray]:
    """Where the histories of decoding sequences lie, and the slots of their new tokens."""
    tables = [piece.sequence.table.blocks for piece in pieces]
    lengths = np.array([piece.stop for piece in pieces], np.int64)
    width = max(len(table) for table in tables)
    blocks = np.zeros((len(pieces), width), np.int64)
    for row, table in enumerate(tables):
        blocks[row, : len(table)] = table
    slots = (blocks[:, :, None] * block_size + np.arange(block_size)).reshape(len(pieces), -1)
    # The block that the new token goes to is never shared.
    runs = shared_runs(
        [table[: (piece.stop - 1) // block_size] for table, piece in zip(tables, pieces, strict=True)], block_size
    )
    first = np.zeros(len(pieces), np.int64)
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
    own = first[:, None] + np.arange(int((lengths - first).max()))
    own = np.take_along_axis(slots, np.minimum(own, slots.shape[1] - 1), 1)
    decode = DecodeTables(
        shared,
        torch.from_numpy(own).to(device),
        torch.from_numpy(first).to(device),
        torch.from_numpy(lengths).to(device),
    )
    return decode, slots[np.arange(len(pieces)), lengths - 1]


def _run_of(slots: np.ndarray, device: torch.device) -> torch.Tensor | slice:
    """Slots that follow each other as a slice, which is read where it stands."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first == slots.size - 1 and bool((np.diff(slots) == 1).all()):
        return slice(first, last + 1)
    return torch.from_numpy(slots).to(device)
