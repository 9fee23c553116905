"""Rank 0's commands to the other ranks, and their messages to it.

Weights change in turns: a turn begins for the other ranks with its first command, and until it ends they sample
nothing, as rank 0 does. A command is a method of a learner or a scorer, which every rank calls with its own share, in
the same order: rank 0 scatters the arguments, calls its own, and gathers the results.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from ...tokens import PackedTrees, Share, TokenDelta, divide
from ..engine import EngineCounters
from ..errors import PolicyError
from ..model import PolicyModel
from ..rank_group import RankGroup
from .channel import Channel
from .follower import LOSS_SECONDS, end_later
from .rendezvous import RankLostError

T = TypeVar("T")


class Followers:
    """Ranks 1, 2 … as rank 0 sees them. Turns and commands belong to the torch thread.

    Args:
        group: all ranks.
        silence: seconds without a message after which one of them counts as lost.
    """

    def __init__(self, group: RankGroup, silence: float) -> None:
        self.group = group
        self.count = group.size - 1
        self.model: PolicyModel | None = None
        """Rank 0's model, once it is loaded."""
        self.lost: Future[None] = Future()
        """Fails with the reason once a rank is lost."""
        self.counters = [EngineCounters() for _ in range(group.size)]
        """Work of each rank's engine so far; rank 0's are its engine's own."""
        self.on_delta: Callable[[int, TokenDelta], None] = lambda number, delta: None
        """Called with each delta of a request, and the number that the request was sent with."""
        self.numbers = itertools.count()
        """Numbers by which learners are named in commands."""
        self._lock = threading.Lock()
        self._end: threading.Timer | None = None
        self._depth = 0
        self._learning = False
        self._begun = False
        self._in_step = True
        """False once rank 0 has failed within a command: the others wait for its part, and no command can follow."""
        self._channels = [Channel(rank, silence) for rank in range(1, group.size)]
        for rank, channel in enumerate(self._channels, 1):
            channel.start(partial(self._on_message, rank), partial(self._on_lost, rank))

    def check(self) -> None:
        """Raise the loss of a rank, if one is lost."""
        if self.lost.done():
            self.lost.result()

    @contextmanager
    def turn(self, *, learning: bool) -> Iterator[None]:
        """Hold a turn, within another one a part of it; the others take part from their first command on.

        Args:
            learning: whether the memory of their caches is given back for it.
        """
        if self._depth == 0:
            self._learning, self._begun = learning, False
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self._begun and self._in_step and not self.lost.done():
                with self.reporting_losses():
                    self.group.scatter([None] * self.group.size)

    def call(
        self,
        target: Any,
        method: str,
        arguments: Sequence[tuple[Any, ...] | None],
        here: Callable[[], T] | None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[T | None, list[Any]]:
        """Have all ranks call a method; return the result of this one, and those of the others in order.

        Args:
            target: number of a learner, arguments of a scorer, or None for the rank itself.
            arguments: of each other rank; None for one without a share, whose result is None.
            here: the call of this rank; None where it has no share.
            options: keyword arguments, the same on all.

        Raises:
            RankLostError: a rank is lost, or could not do it.
        """
        self.check()
        if self._depth == 0:
            raise RuntimeError(f"{method} is no part of a turn: use `Policy.run` or `Policy.learn`")
        if not self._in_step:
            raise PolicyError(f"{method}: the other ranks still wait for a command in which rank 0 has failed")
        if not self._begun:
            self._begun = True
            self.send_all(("turn", self._learning))
        with self.reporting_losses():
            self.group.scatter([None, *((target, method, each, options or {}) for each in arguments)])
            result: T | None = None
            self._in_step = False
            if here is not None:
                result = here()
            elif self.model is not None and self.model.shards is not None:
                self.model.shards.end()
            results = self.group.gather(None)[1:]
            self._in_step = True
        return result, results

    def call_alike(self, target: Any, method: str, here: Callable[[], T], *arguments: Any) -> T:
        """Have all ranks call a method with the same arguments; return the result of this one."""
        return self.call(target, method, [arguments] * self.count, here)[0]  # type: ignore[return-value]  # it has a share

    def call_in_shares(
        self,
        target: Any,
        method: str,
        packed: PackedTrees,
        here: Callable[[Share], T],
        arguments: Callable[[Share], tuple[Any, ...]] = lambda share: (share.packed,),
        options: Mapping[str, Any] | None = None,
    ) -> list[tuple[Share, T]]:
        """Divide trees among all ranks and have each call a method; return the shares with their results.

        Args:
            here: the call of this rank for its share.
            arguments: of another rank for its share; by default the trees alone.
            options: keyword arguments of the other ranks, the same for each.
        """
        first, *others = divide(packed, self.group.size)
        result, results = self.call(
            target,
            method,
            [None if share is None else arguments(share) for share in others],
            None if first is None else partial(here, first),
            options,
        )
        pairs = zip([first, *others], [result, *results], strict=True)
        return [(share, part) for share, part in pairs if share is not None and part is not None]

    def copy_weights(self, model: PolicyModel, adapter: str) -> None:
        """Give the others the weights of an adapter, or all under full training, that this rank has."""
        self.call_alike(None, "copy_weights", lambda: self.group.copy_from_first(model.trainable(adapter)), adapter)

    def send(self, rank: int, message: tuple[Any, ...]) -> None:
        """Send a message to one of them, from any thread."""
        self._channels[rank - 1].send(message)

    def send_all(self, message: tuple[Any, ...]) -> None:
        """Send a message to all of them, from any thread."""
        for channel in self._channels:
            channel.send(message)

    def close(self) -> bool:
        """End the run of the others; return whether all of them end with it, so that the group can be left."""
        self.send_all(("goodbye",))
        ended = [channel.close() for channel in self._channels]
        if self._end is not None:
            self._end.cancel()
        return all(ended) and self._in_step and not self.lost.done()

    @contextmanager
    def reporting_losses(self) -> Iterator[None]:
        """Raise the loss of a rank in place of the failure of a collective operation with it."""
        try:
            yield
        except RankLostError:
            raise
        except RuntimeError:
            wait([self.lost], LOSS_SECONDS)  # the operation fails a moment before the loss is reported
            self.check()
            raise

    def _on_message(self, rank: int, message: tuple[Any, ...]) -> None:
        kind, *values = message
        if kind == "delta":
            self.on_delta(*values)
        elif kind == "counters":
            self.counters[rank] = values[0]
        elif kind == "failed":
            self._on_lost(rank, f"failed: {values[0]}")

    def _on_lost(self, rank: int, reason: str) -> None:
        with self._lock:
            if not self.lost.done():
                self._end = end_later(f"rank {rank} {reason}")
                error = RankLostError(f"rank {rank} {reason}; `resume` goes on from the last checkpoint")
                self.lost.set_exception(error)
