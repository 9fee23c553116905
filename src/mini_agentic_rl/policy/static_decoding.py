"""Decode steps over fixed buffers, which a GPU repeats without Python (CUDA graphs).

A decode step is some hundreds of small kernels, and launching them one by one from Python takes longer than running
them. A graph holds the launches with the addresses that they were recorded with, so it is right as long as everything
that it reads and writes stays where it is: weights and adapters are updated in place, inputs are copied into buffers.

Rows and widths are filled up to a few sizes; what fills up repeats the first row, and is thrown away. Each row reads
its whole history by itself. That reads what sequences share more than once, in exchange for shapes that do not depend
on who shares what, so it is for steps that wait for launches and not for memory (`READ`).

A size is computed plainly when it is first met, and recorded when it is met again. A recording is used only if it
gives what the plain step gave; where one cannot be made or differs, sampling goes on without, and the log says so.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import Scoring, hiding, partial_attention
from .kv_cache import KVPool
from .machine import fill
from .model import PolicyModel
from .step_batch import Places, StepPlan, places_of_rows, rows_of, twin_copies

Call = Callable[[], None]


class Recorder(Protocol):
    """Something that records a call for repeating it."""

    def record(self, call: Call) -> Call:
        """Run `call`, and return what repeats it; raises what the recording meets."""


class CudaGraphs:
    """Records calls as CUDA graphs. They share their scratch memory, so only one may run at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch
            self._pool = torch.cuda.graph_pool_handle()

    def record(self, call: Call) -> Call:
        """Run `call` once and record it; return what launches the recording on the current stream.

        Raises:
            RuntimeError: something in the call cannot be recorded, such as waiting for a result.
        """
        with torch.cuda.device(self._device):
            before = torch.cuda.current_stream()
            try:
                # On the stream of the recording, because libraries prepare their workspace for each stream apart.
                self._stream.wait_stream(before)
                with torch.cuda.stream(self._stream):
                    call()
                graph = torch.cuda.CUDAGraph()
                # The thread's own errors alone: another one may be copying to the device meanwhile.
                mode = "thread_local"
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
                    call()
            finally:
                # A recording that fails leaves its stream the current one.
                torch.cuda.set_stream(before)
            before.wait_stream(self._stream)
        return graph.replay


class PlainCalls:
    """Repeats a call by calling it: the stand-in where there are no graphs, for tests and benchmarks."""

    def record(self, call: Call) -> Call:
        """Run `call`, and return it."""
        call()
        return call


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


logger = logging.getLogger(__name__)

_KEPT: Final = 128
"""Recordings that are kept, the least recently used being dropped."""
_APART: Final = 2**-4
"""Most that a recording may differ from the plain step, as a share of the largest number: a wrong address differs by
far more, another order of summing in 16 bits by less."""

_Key = tuple[str | None, StepSize]


@dataclass
class DecodeCounters:
    """Counts of decode steps, by how they were computed."""

    replayed: int = 0
    """Steps that a recording repeated."""
    plain: int = 0
    """Steps over the buffers, but without a recording."""
    recorded: int = 0
    """Recordings that were made."""


class DecodeRunner:
    """Computes passes in which sequences decode, and few tokens of prompts are read. Only the torch thread uses it.

    Rollouts of several turns read the result of a tool in nearly every pass. So the tokens of a prompt are rows too,
    each of which sees what is before it.
    """

    def __init__(
        self, model: PolicyModel, pool: KVPool, recorder: Recorder, *, block_size: int, most_rows: int
    ) -> None:
        """
        Args:
            most_rows: the most rows that a pass may have; longer ones are left to others.
        """
        self.counters = DecodeCounters()
        self._model, self._pool, self._recorder = model, pool, recorder
        self._block_size, self._most_rows = block_size, most_rows
        self._buffers: StepBuffers | None = None
        self._met: set[_Key] = set()
        self._recordings: OrderedDict[_Key, Call] = OrderedDict()
        self._addresses: tuple[int, ...] = ()
        self._works, self._unsure = True, True
        self.settled = True
        """False if the last pass was a step that took longer than it will again: a plain or a recorded one."""

    @property
    def holds_recordings(self) -> bool:
        """True if there are recordings: what they read has to stay where it is."""
        return bool(self._recordings)

    def weights_changed(self) -> None:
        """Look before the next step whether everything is where it was."""
        self._unsure = True

    def run(self, plan: StepPlan) -> tuple[Tensor, Places] | None:
        """Compute a pass; return the hidden states of its rows, which the next pass overwrites, and whose they are.

        None where the pass is not one for fixed buffers: nothing has been computed then.
        """
        self.settled = True
        if not self._works:
            return None
        rows = rows_of((*plan.prefill, *plan.decode))
        places = Places(len(rows), places_of_rows(rows, 0))
        slots, sources = [row.slot(self._block_size) for row in rows], list(range(len(rows)))
        for own, indices in twin_copies(plan, places, self._block_size):
            slots.extend(own.tolist())
            sources.extend(indices)
        # Keys go to more places than there are rows, where sequences draw from one row.
        size = step_size(len(slots), max(row.length for row in rows), self._block_size)
        if not size.fits(self._block_size):
            return None
        if self._buffers is None:
            self._buffers = StepBuffers(self._model, self._block_size, self._most_rows)
        if not self._buffers.holds(size):
            return None
        self._forget_moved()
        step = StaticStep(self._model, self._pool, self._buffers, self._block_size, size)
        step.fill(
            StepInputs(
                tokens=[row.token for row in rows],
                positions=[row.length - 1 for row in rows],
                blocks=[row.blocks[: -(-row.length // self._block_size)] for row in rows],
                slots=slots,
                sources=sources,
            )
        )
        if not self._compute((plan.adapter, size), step):
            return None
        return self._buffers.hidden(len(rows)), places

    def _compute(self, key: _Key, step: StaticStep) -> bool:
        """Compute the filled step, from a recording where it pays; False where recording has just failed."""
        self.settled = key in self._recordings
        replay = self._recordings.get(key)
        if replay is None and key in self._met:
            replay = self._record(key, step)
            if replay is None:
                return False
        if replay is None:
            self._met.add(key)
            self.counters.plain += 1
            step.compute()
        else:
            self._recordings.move_to_end(key)
            self.counters.replayed += 1
            replay()
        return True

    def _record(self, key: _Key, step: StaticStep) -> Call | None:
        """Return a recording of a step that gives what the plain one gives; None where none can be had."""
        rows = key[1].rows
        buffers = step.buffers
        try:
            replay = self._recorder.record(step.compute)
            expected = buffers.hidden(rows).clone()
            buffers.hidden(rows).zero_()
            replay()
            apart = float((buffers.hidden(rows) - expected).abs().max() / expected.abs().max())
        except RuntimeError as error:
            self._give_up(f"a step cannot be recorded: {error}")
            return None
        if not apart <= _APART:
            self._give_up(f"a recorded step gave other numbers ({apart:.3g} apart)")
            return None
        self.counters.recorded += 1
        self._recordings[key] = replay
        if len(self._recordings) > _KEPT:
            self._recordings.popitem(last=False)
        return replay

    def _give_up(self, reason: str) -> None:
        logger.warning("decoding goes on without CUDA graphs, which is slower and changes no token: %s", reason)
        self._works = False
        self._recordings.clear()
        self._buffers = None

    def _forget_moved(self) -> None:
        """Drop the recordings if anything that they read has another address since."""
        if not self._unsure and self._addresses[0] == self._pool.keys.data_ptr():
            return
        tensors = (self._pool.values, *self._model.base.parameters(), *self._model.base.buffers())
        addresses = (self._pool.keys.data_ptr(), *(tensor.data_ptr() for tensor in tensors))
        if addresses != self._addresses:
            self._recordings.clear()
        self._addresses, self._unsure = addresses, False
