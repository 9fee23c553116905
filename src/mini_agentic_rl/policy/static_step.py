"""A decode step over fixed buffers: the same tensors in the same places each time, so that it can be recorded.

What differs from step to step is copied into the buffers: tokens, positions, and for each row the cache blocks of its
history. Rows and widths are filled up to a few sizes; what fills up repeats the first row, and is thrown away. Each
row reads its whole history by itself. That reads what sequences share more than once, in exchange for shapes that do
not depend on who shares what, so it is for steps that wait for launches and not for memory: `fits` says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import Scoring, hiding, partial_attention
from .device_copies import fill
from .kv_cache import KVPool
from .model import PolicyModel

READ: Final = 2**18
"""Tokens of cached history, rows times width, up to which a step runs over fixed buffers."""
GATHERED: Final = 2**16
"""Tokens of cached history that are gathered at once: bounds the memory of one layer's attention."""
_UNIT: Final = 64
"""Tokens that a width is a multiple of, or one block where that is more; fused attention wants even rows."""


@dataclass(frozen=True)
class StepSize:
    """Size of a step's buffers: rows, and cache blocks for each of them."""

    rows: int
    blocks: int

    def fits(self, block_size: int) -> bool:
        """Return True if a step of this size is one for fixed buffers."""
        return self.rows * self.blocks * block_size <= READ


def step_size(rows: int, tokens: int, block_size: int) -> StepSize:
    """Return the size for `rows` rows, the longest history of which has `tokens` tokens."""
    unit = -(-_UNIT // block_size)
    return StepSize(_rounded(rows), unit * _rounded(-(-tokens // (unit * block_size))))


def _rounded(count: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, 24 ...: at most half as much again."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


@dataclass(frozen=True)
class StepInputs:
    """A step in numbers, before it is filled up."""

    tokens: Sequence[int]
    positions: Sequence[int]
    blocks: Sequence[Sequence[int]]
    """Cache blocks of each row's history, its own token's included."""
    slots: Sequence[int]
    """Cache slots that keys and values are written to."""
    sources: Sequence[int]
    """Row that each of them is taken from."""

    def filled(self, size: StepSize) -> npt.NDArray[np.int64]:
        """Return all of it in the order of the buffers, filled up to `size`."""
        flat = np.empty(_numbers(size), np.int64)
        rows, blocks = flat[: 4 * size.rows].reshape(4, -1), flat[4 * size.rows :].reshape(size.rows, -1)
        for row, values in zip(rows, (self.tokens, self.positions, self.slots, self.sources), strict=True):
            row[: len(values)] = values
            # Whatever fills up writes what the first row writes, to where it writes it.
            row[len(values) :] = values[0]
        blocks[:] = 0
        for table, held in zip(blocks, self.blocks, strict=False):
            table[: len(held)] = held
        blocks[len(self.blocks) :] = blocks[0]
        return flat


def _numbers(size: StepSize) -> int:
    return size.rows * (4 + size.blocks)


class StepBuffers:
    """The memory that all sizes share, as only one step runs at a time."""

    def __init__(self, model: PolicyModel, block_size: int, most_rows: int) -> None:
        rows = _rounded(most_rows)
        width = max(READ // block_size, rows)
        self._numbers = torch.zeros(4 * rows + width, dtype=torch.long, device=model.device)
        self._rows, self._hidden_RM = rows, torch.empty(0, device=model.device)

    def holds(self, size: StepSize) -> bool:
        """Return True if a step of this size has room."""
        return size.rows <= self._rows and _numbers(size) <= self._numbers.numel()

    def numbers(self, size: StepSize) -> Tensor:
        """Return the place of a step's inputs."""
        return self._numbers[: _numbers(size)]

    def keep(self, hidden_RM: Tensor) -> None:
        """Copy a step's result to where `hidden` finds it."""
        if not self._hidden_RM.numel():  # how wide it is, and of which type, the first result says
            self._hidden_RM = hidden_RM.new_zeros(self._rows, hidden_RM.shape[1])
        self._hidden_RM[: len(hidden_RM)].copy_(hidden_RM)

    def hidden(self, rows: int) -> Tensor:
        """Return the last result's first rows [rows, M]. The next step overwrites them."""
        return self._hidden_RM[:rows]


class StaticStep:
    """A step of one size: `fill` takes its inputs, `compute` runs the model, and may be recorded."""

    def __init__(self, model: PolicyModel, pool: KVPool, buffers: StepBuffers, block_size: int, size: StepSize) -> None:
        self._model, self._pool = model, pool
        self.buffers = buffers
        self._block_size, self._size = block_size, size
        self._numbers = buffers.numbers(size)

    def fill(self, inputs: StepInputs) -> None:
        """Copy inputs of at most this size into the buffers."""
        fill(self._numbers, inputs.filled(self._size))

    def compute(self) -> None:
        """Compute the hidden states of all rows from what the buffers hold. Nothing here looks at a value."""
        rows = self._size.rows
        tokens_R, positions_R, slots_R, sources_R = self._numbers[: 4 * rows].view(4, rows)
        blocks_RN = self._numbers[4 * rows :].view(rows, self._size.blocks)
        offsets = torch.arange(self._block_size, device=blocks_RN.device)
        slots_RC = (blocks_RN[:, :, None] * self._block_size + offsets).view(rows, -1)
        tables = _StaticTables(self._pool, positions_R, slots_R, sources_R, slots_RC)
        self.buffers.keep(self._model.hidden(tokens_R, positions_R, tables))


class _StaticTables:
    """Attention of R rows, each over its own C slots, as far as its position."""

    def __init__(
        self, pool: KVPool, positions_R: Tensor, new_slots_R: Tensor, sources_R: Tensor, slots_RC: Tensor
    ) -> None:
        self._pool, self._positions_R = pool, positions_R
        self._new_slots_R, self._sources_R, self._slots_RC = new_slots_R, sources_R, slots_RC
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, layer: int, q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, scoring: Scoring) -> Tensor:
        heads, rows, size = q_HTD.shape
        keys, values = k_HTD.transpose(0, 1)[self._sources_R], v_HTD.transpose(0, 1)[self._sources_R]
        self._pool.write(layer, self._new_slots_R, keys, values)
        q_RKGD = q_HTD.reshape(self._pool.heads, -1, rows, size).permute(2, 0, 1, 3)
        mask_R11C = self._mask(scoring.window, q_HTD.dtype)
        out_RHD = q_HTD.new_empty(rows, heads, size)
        together = max(1, GATHERED // self._slots_RC.shape[1])
        for start in range(0, rows, together):
            some = slice(start, start + together)
            keys_RCKD, values_RCKD = self._pool.read(layer, self._slots_RC[some])
            parts = (q_RKGD[some], keys_RCKD.transpose(1, 2), values_RCKD.transpose(1, 2), mask_R11C[some])
            out_RHD[some] = _attention(*parts, scoring).reshape(-1, heads, size)
        return out_RHD

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        if window not in self._masks:
            at_R1 = self._positions_R[:, None]
            position_1C = torch.arange(self._slots_RC.shape[1], device=at_R1.device)[None, :]
            hidden_RC = position_1C > at_R1
            if window is not None:
                hidden_RC |= position_1C <= at_R1 - window
            self._masks[window] = hiding(hidden_RC, dtype)[:, None, None, :]
        return self._masks[window]


def _attention(q_RKGD: Tensor, keys_RKCD: Tensor, values_RKCD: Tensor, mask_R11C: Tensor, scoring: Scoring) -> Tensor:
    if scoring.softcap is not None:  # torch's fused attention cannot squash scores
        return partial_attention(q_RKGD, keys_RKCD, values_RKCD, mask_R11C, scoring)[0]
    return F.scaled_dot_product_attention(q_RKGD, keys_RKCD, values_RKCD, attn_mask=mask_R11C, scale=scoring.scale)
