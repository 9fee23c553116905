"""The tensors of one engine step: which tokens the model sees, where their keys go, and who reads which hidden state.

Packed order: prefill chunks first, then one token for each decoding sequence. A piece with a twin adds no token; it
gets copies of its twin's keys and values in its own cache slots, and draws from its twin's hidden state.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor

from .decode_attention import DecodeTables
from .kv_cache import KVPool
from .paged_attention import Chunk, PagedTables
from .scheduler import Piece, Plan


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


def pack_step(plan: Plan, pool: KVPool, block_size: int) -> StepBatch:
    """Lay out the pieces of `plan`, whose cache slots are in `pool`."""
    device = pool.keys.device
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
    decoding = [p for p in plan.decode if p.twin is None]
    decode: DecodeTables | None = None
    if decoding:
        lengths = np.array([piece.stop for piece in decoding], np.int64)
        table_BC = _decode_table(decoding, int(lengths.max()), block_size)
        slots.append(table_BC[np.arange(len(lengths)), lengths - 1])
        shared = _shared_blocks(decoding, int(lengths.min()), block_size) * block_size
        decode = DecodeTables(
            torch.from_numpy(table_BC[0, :shared]).to(device),
            torch.from_numpy(table_BC[:, shared:]).to(device),
            torch.from_numpy(lengths).to(device),
        )
        starts.update(zip(decoding, range(len(tokens), len(tokens) + len(decoding)), strict=True))
        tokens.extend(piece.sequence.tokens[-1] for piece in decoding)
        positions.extend((lengths - 1).tolist())
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


def _decode_table(pieces: list[Piece], longest: int, block_size: int) -> np.ndarray:
    """[B, C] cache slots of every position of each decoding sequence; past its end any slot stands."""
    width = max(len(piece.sequence.table.blocks) for piece in pieces)
    blocks = np.zeros((len(pieces), width), np.int64)
    for row, piece in enumerate(pieces):
        blocks[row, : len(piece.sequence.table.blocks)] = piece.sequence.table.blocks
    return (blocks[:, :, None] * block_size + np.arange(block_size)).reshape(len(pieces), -1)[:, :longest]


def _shared_blocks(pieces: list[Piece], shortest: int, block_size: int) -> int:
    """How many blocks all of several sequences begin with; the shortest keeps a token of its own. 0 for one alone,
    which shares with nobody."""
    if len(pieces) < 2:
        return 0
    columns = zip(*(piece.sequence.table.blocks[: (shortest - 1) // block_size] for piece in pieces), strict=True)
    return sum(1 for _ in takewhile(lambda blocks: len(set(blocks)) == 1, columns))
