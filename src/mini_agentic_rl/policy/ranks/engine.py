"""Rank 0's engine, which hands requests on: each is sampled by the rank that its rollout was given, at its first one,
because it had the least to do.

Draws depend on a request's seed and on the position alone, so that any rank draws the same tokens from the same
distribution. Requests under a grammar stay here: a grammar's state is of this process.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ...tokens import TokenDelta, TokenRequest
from ..engine import Engine
from ..errors import QueueFullError
from ..step_batch import RunningSequence
from .team import Team

_REMEMBERED: Final = 1 << 16
"""Rollouts whose rank is known, at most."""


class SpreadEngine(Engine):
    """The engine of rank 0, and the way to those of the others. Its counters and its cache are its own."""

    def __init__(self, team: Team, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._team = team
        self._lock = threading.Lock()
        self._sent = itertools.count()
        self._elsewhere: dict[int, tuple[int, RunningSequence]] = {}
        """Requests that other ranks sample, with their rank, by number."""
        self._number_of: dict[int, int] = {}
        """Their numbers by the id of the sequence."""
        self._busy = [0] * (team.others + 1)
        self._given = [0] * (team.others + 1)
        self._rank_of: OrderedDict[str, int] = OrderedDict()
        team.on_delta = self._hear
        team.lost.add_done_callback(lambda lost: self._drop_elsewhere())

    def submit(self, request: TokenRequest, on_delta: Callable[[TokenDelta], None]) -> RunningSequence:
        """Queue a request here or elsewhere; see `Engine.submit`."""
        sequence = self.checked(request, on_delta)
        with self._lock:
            rank = self._rank_for(request)
            if rank > 0:
                if self._busy[rank] >= self.settings.max_waiting + self.settings.max_running:
                    raise QueueFullError(f"{self.settings.max_waiting} requests wait already (`max_waiting`)")
                number = next(self._sent)
                self._elsewhere[number] = (rank, sequence)
                self._number_of[id(sequence)] = number
                self._busy[rank] += 1
        if rank == 0:
            return self.queue(sequence)
        seeded = replace(request, sampling=replace(request.sampling, seed=sequence.seed))
        self._team.sample(rank, number, seeded)
        if self._team.lost.done():
            self._drop_elsewhere()
        return sequence

    def cancel(self, sequence: RunningSequence) -> None:
        number = self._number_of.get(id(sequence))
        there = None if number is None else self._elsewhere.get(number)
        if number is None or there is None:
            super().cancel(sequence)
        else:
            self._team.cancel(there[0], number)

    def abandon(self) -> None:
        super().abandon()
        self._drop_elsewhere()

    @property
    def sampled_tokens(self) -> int:
        return super().sampled_tokens + sum(counters.sampled_tokens for counters in self._team.counters)

    @property
    def sequence_counts(self) -> tuple[int, int]:
        running, waiting = super().sequence_counts
        return running + len(self._elsewhere), waiting

    def _rank_for(self, request: TokenRequest) -> int:
        if request.constraint is not None:
            return 0
        rank = self._rank_of.get(request.affinity) if request.affinity else None
        if rank is None:
            self._busy[0] = sum(super().sequence_counts)
            rank = min(range(len(self._busy)), key=lambda one: (self._busy[one], self._given[one]))
            self._given[rank] += 1
        if request.affinity:
            self._rank_of[request.affinity] = rank
            self._rank_of.move_to_end(request.affinity)
            if len(self._rank_of) > _REMEMBERED:
                self._rank_of.popitem(last=False)
        return rank

    def _hear(self, rank: int, number: int, delta: TokenDelta) -> None:
        there = self._elsewhere.get(number)
        if there is None:
            return
        if delta.finish_reason is not None:
            self._forget(number)
        there[1].tell(delta)

    def _forget(self, number: int) -> None:
        with self._lock:
            there = self._elsewhere.pop(number, None)
            if there is not None:
                self._number_of.pop(id(there[1]), None)
                self._busy[there[0]] -= 1

    def _drop_elsewhere(self) -> None:
        for number, (_, sequence) in list(self._elsewhere.items()):
            self._forget(number)
            sequence.tell(TokenDelta(finish_reason="cancelled"))
