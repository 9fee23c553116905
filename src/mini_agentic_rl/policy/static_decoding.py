"""Decode steps over fixed buffers, which a GPU repeats without Python (CUDA graphs).

A decode step consists of hundreds of small kernels, and launching them from Python takes longer than running them. A
graph stores the launches with their addresses, so everything that it reads and writes must keep its address: weights
and adapters are updated in place, inputs are copied into buffers.

Rows and widths are padded to a few sizes; padding repeats the first row, and its results are dropped. Each row reads
its whole history by itself. Shared histories are read more than once, but shapes do not depend on what is shared. So
this pays for steps that are bound by launches and not by memory (`READ`).

A size is computed plainly the first time and recorded the second time. A recording is used only if it gives the
results of the plain step; if recording fails, sampling continues without graphs and logs a warning.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .kv_cache import KVPool
from .machine import fill
from .model import PolicyModel
from .sampling_attention import DecodeTables, PagedTables
from .step_batch import Places, StepPlan, places_of_rows, rows_of, twin_copies

logger = logging.getLogger(__name__)

Call = Callable[[], None]


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
                # On the stream of the recording, because libraries prepare a workspace for each stream.
                self._stream.wait_stream(before)
                with torch.cuda.stream(self._stream):
                    call()
                graph = torch.cuda.CUDAGraph()
                # Only errors of this thread: another one may be copying to the device meanwhile.
                mode = "thread_local"
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
                    call()
            finally:
                # A failed recording leaves its stream as the current one.
                torch.cuda.set_stream(before)
            before.wait_stream(self._stream)
        return graph.replay


READ: Final = 2**18
"""Tokens of cached history, rows times width, up to which a step runs over fixed buffers."""
_UNIT: Final = 64
"""A width is a multiple of so many tokens, or of one block if that is more: fused attention needs aligned rows."""
_KEPT: Final = 128
"""Maximum number of recordings; the least recently used is dropped."""
_TOLERANCE: Final = 2**-4
"""Maximum difference of a recording from the plain step, relative to the largest value: a wrong address differs by far
more, another order of summation in 16 bits by less."""


@dataclass(frozen=True)
class StepSize:
    """Size of a step's buffers: rows, and cache blocks for each of them."""

    rows: int
    blocks: int

    @property
    def numbers(self) -> int:
        """Number of integers of a step's inputs: four a row, and the row's blocks."""
        return self.rows * (4 + self.blocks)

    def fits(self, block_size: int) -> bool:
        """Return True if a step of this size may run over fixed buffers."""
        return self.rows * self.blocks * block_size <= READ


def step_size(rows: int, tokens: int, block_size: int) -> StepSize:
    """Return the size for `rows` rows, the longest history of which has `tokens` tokens."""
    unit = -(-_UNIT // block_size)
    return StepSize(_rounded(rows), unit * _rounded(-(-tokens // (unit * block_size))))


def _rounded(count: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, 24 ...: at most half as much again."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


def _filled(size: StepSize, of_rows: Sequence[list[int]], blocks: Sequence[list[int]]) -> npt.NDArray[np.int64]:
    """Return the inputs of a step in the order of the buffers, padded to `size`.

    Args:
        of_rows: tokens; positions; cache slots that keys and values are written to; and the row that each of these is
            taken from.
        blocks: cache blocks of each row's history, its own token's included.
    """
    flat = np.empty(size.numbers, np.int64)
    rows, tables = flat[: 4 * size.rows].reshape(4, -1), flat[4 * size.rows :].reshape(size.rows, -1)
    for row, values in zip(rows, of_rows, strict=True):
        row[: len(values)] = values
        # Padding writes the first row again, to the same slot.
        row[len(values) :] = values[0]
    tables[:] = 0
    for table, held in zip(tables, blocks, strict=False):
        table[: len(held)] = held
    tables[len(blocks) :] = tables[0]
    return flat


_Key = tuple[str | None, StepSize]


class DecodeRunner:
    """Computes passes of decoding sequences and short prompts over fixed buffers. Only the torch thread uses it.

    Rollouts of several turns read the result of a tool in nearly every pass, so the tokens of a prompt are rows too.
    All sizes share one set of buffers, as only one step runs at a time.
    """

    def __init__(
        self, model: PolicyModel, pool: KVPool, recorder: CudaGraphs, *, block_size: int, most_rows: int
    ) -> None:
        """
        Args:
            most_rows: the most rows of a pass; the engine computes longer ones itself.
        """
        self.counters: Counter[str] = Counter()
        """Numbers of steps: `replayed`, computed `plain` over the buffers, or `recorded`."""
        self._model, self._pool, self._recorder = model, pool, recorder
        self._block_size, self._most_rows = block_size, _rounded(most_rows)
        self._numbers = self._hidden_RM = torch.empty(0)
        """Inputs and results of a step; allocated when first used."""
        self._met: set[_Key] = set()
        self._recordings: OrderedDict[_Key, Call] = OrderedDict()
        self._addresses: tuple[int, ...] = ()
        self._works, self._addresses_checked = True, False
        self.settled = True
        """False if the last pass was slower than its repetitions will be: it was computed plainly, or recorded."""

    @property
    def holds_recordings(self) -> bool:
        """True if there are recordings: what they read has to keep its addresses."""
        return bool(self._recordings)

    def weights_changed(self) -> None:
        """Check before the next step that all tensors have kept their addresses."""
        self._addresses_checked = False

    def run(self, plan: StepPlan) -> tuple[Tensor, Places] | None:
        """Compute a pass.

        Returns:
            The hidden states of its rows, which the next pass overwrites, and the places of its tokens. None where the
            pass does not fit the buffers: nothing has been computed then.
        """
        self.settled = True
        if not self._works:
            return None
        rows = rows_of((*plan.prefill, *plan.decode))
        places = Places(len(rows), places_of_rows(rows, 0))
        slots, sources = [row.slot(self._block_size) for row in rows], list(range(len(rows)))
        for twin_slots, indices in twin_copies(plan, places, self._block_size):
            slots.extend(twin_slots.tolist())
            sources.extend(indices)
        # Keys go to more places than there are rows, where sequences draw from one row.
        size = step_size(len(slots), max(row.length for row in rows), self._block_size)
        if not size.fits(self._block_size):
            return None
        if not self._numbers.numel():
            width = max(READ // self._block_size, self._most_rows)
            self._numbers = torch.zeros(4 * self._most_rows + width, dtype=torch.long, device=self._model.device)
        if size.rows > self._most_rows or size.numbers > self._numbers.numel():
            return None
        self._forget_moved()
        of_rows = ([row.token for row in rows], [row.length - 1 for row in rows], slots, sources)
        blocks = [row.blocks[: -(-row.length // self._block_size)] for row in rows]
        fill(self._numbers[: size.numbers], _filled(size, of_rows, blocks))
        return (self._hidden_RM[: len(rows)], places) if self._compute((plan.adapter, size)) else None

    def _compute(self, key: _Key) -> bool:
        """Compute the step in the buffers, by a recording if there is one; False if recording has just failed."""
        self.settled = key in self._recordings
        if key not in self._recordings:
            if key not in self._met:
                self._met.add(key)
                self.counters["plain"] += 1
                self._compute_plainly(key[1])
                return True
            if not self._record(key):
                return False
        self._recordings.move_to_end(key)
        self.counters["replayed"] += 1
        self._recordings[key]()
        return True

    def _compute_plainly(self, size: StepSize) -> None:
        """Compute the hidden states of all rows from the buffers, without reading a value on the host."""
        numbers, rows = self._numbers[: size.numbers], size.rows
        tokens_R, positions_R, slots_R, sources_R = numbers[: 4 * rows].view(4, rows)
        blocks_RN = numbers[4 * rows :].view(rows, size.blocks)
        offsets = torch.arange(self._block_size, device=blocks_RN.device)
        slots_RC = (blocks_RN[:, :, None] * self._block_size + offsets).view(rows, -1)
        decode = DecodeTables([], slots_RC, torch.zeros_like(positions_R), positions_R + 1)
        tables = PagedTables(self._pool, slots_R, sources_R, [], decode)
        hidden_RM = self._model.hidden(tokens_R, positions_R, tables)
        if not self._hidden_RM.numel():  # the first result gives the width and the type
            self._hidden_RM = hidden_RM.new_zeros(self._most_rows, hidden_RM.shape[1])
        self._hidden_RM[:rows].copy_(hidden_RM)

    def _record(self, key: _Key) -> bool:
        """Record a step, and compare the recording with the plain step; False if that fails."""
        size = key[1]
        try:
            replay = self._recorder.record(lambda: self._compute_plainly(size))
            hidden_RM = self._hidden_RM[: size.rows]
            expected = hidden_RM.clone()
            hidden_RM.zero_()
            replay()
            difference = float((hidden_RM - expected).abs().max() / expected.abs().max())
        except RuntimeError as error:
            return self._give_up(f"a step cannot be recorded: {error}")
        if not difference <= _TOLERANCE:
            return self._give_up(f"a recorded step gave other numbers (difference {difference:.3g})")
        self.counters["recorded"] += 1
        self._recordings[key] = replay
        if len(self._recordings) > _KEPT:
            self._recordings.popitem(last=False)
        return True

    def _give_up(self, reason: str) -> bool:
        logger.warning("decoding continues without CUDA graphs, which is slower and changes no token: %s", reason)
        self._works = False
        self._recordings.clear()
        self._numbers = self._hidden_RM = torch.empty(0)
        return False

    def _forget_moved(self) -> None:
        """Drop the recordings if any tensor that they read has another address."""
        if self._addresses_checked and self._addresses[0] == self._pool.keys.data_ptr():
            return
        tensors = (self._pool.keys, self._pool.values, *self._model.base.parameters(), *self._model.base.buffers())
        addresses = tuple(tensor.data_ptr() for tensor in tensors)
        if addresses != self._addresses:
            self._recordings.clear()
        self._addresses, self._addresses_checked = addresses, True
