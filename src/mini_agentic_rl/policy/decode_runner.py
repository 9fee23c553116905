"""Sampling over fixed buffers: which passes go through them, and the recordings that repeat them.

A size is computed plainly when it is first met, and recorded when it is met again. A recording is used only if it
gives what the plain step gave; where one cannot be made or differs, sampling goes on without, and the log says so.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from .kv_cache import KVPool
from .model import PolicyModel
from .static_step import StaticStep, StepBuffers, StepInputs, StepSize, step_size
from .step_batch import Places, places_of_rows, rows_of, twin_copies
from .step_graph import Call, Recorder
from .step_plan import StepPlan

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
