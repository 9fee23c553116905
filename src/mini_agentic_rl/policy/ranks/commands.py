"""Messages between rank 0 and each other rank, and rank 0's commands to them.

    rank 0 sends      sample, cancel, call, end (of a turn), failed
    the others send   delta, result (of a call), failed

Weights change in turns: a turn begins for the other ranks with its first call, and until it ends they sample nothing,
as rank 0 does. A call names a method of a learner or a scorer, which every rank runs with its own share, in the same
order.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import torch.distributed as dist

from ...tokens import PackedTrees, Share, TokenDelta, divide
from ..engine import EngineCounters
from ..errors import PolicyError
from ..model import PolicyModel
from ..rank_group import NO_SWEEP, RankGroup
from .rendezvous import RankLostError

T = TypeVar("T")

logger = logging.getLogger(__name__)

LOSS_SECONDS: Final = 3.0
"""Seconds between a collective operation that fails and the news that a rank is lost, at most."""
_END_SECONDS: Final = 60.0
"""Seconds after a loss in which a process ends by itself: its torch thread may wait for the lost rank for ever."""
_CLOSE_SECONDS: Final = 5.0
_HEARTBEATS: Final = 4
"""Heartbeats of a rank that has nothing to send, within the seconds of silence that end a channel."""


class Channel:
    """Messages to and from one other rank, in order, over the default process group of torch.distributed (gloo).

    They are pickled, and nothing authenticates them, as with any torch.distributed program. A rank that dies closes its
    connections. A rank that hangs, or whose host is unreachable, counts as lost after `silence` seconds.

    Args:
        peer: number of the other rank.
        silence: time limit of the process group, in seconds.
    """

    def __init__(self, peer: int, silence: float) -> None:
        self._peer = peer
        self._silence = silence
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name=f"writes rank {peer}", daemon=True)
        self._writer.start()

    def send(self, message: Any) -> None:
        """Send a message, from any thread and without waiting. Messages to a lost rank are dropped."""
        self._outgoing.put(pickle.dumps(message))

    def messages(self) -> Iterator[Any]:
        """Yield the messages of the other rank until it closes the channel.

        Raises:
            RankLostError: the other rank is lost before.
        """
        received: list[Any] = [[]]
        while received[0] is not None:
            yield from map(pickle.loads, received[0])
            try:
                dist.recv_object_list(received, self._peer)
            except RuntimeError as error:
                reason = "has closed its connection"
                if "timed out" in str(error).lower():
                    reason = f"was silent for {self._silence:g} seconds (`rank_timeout`)"
                raise RankLostError(f"rank {self._peer} {reason}") from error

    def close(self, seconds: float = 5.0) -> None:
        """Send the queued messages and close the channel for the other rank, within so many seconds."""
        self._outgoing.put(None)
        self._writer.join(seconds)

    def _write(self) -> None:
        closing = False
        with suppress(RuntimeError):  # `messages` reports the reason
            while not closing:
                messages, closing = self._next_messages()
                dist.send_object_list([messages], self._peer)  # an empty list is a heartbeat
            dist.send_object_list([None], self._peer)

    def _next_messages(self) -> tuple[list[bytes], bool]:
        """Return the queued messages, or none when a heartbeat is due; and whether they are the last."""
        messages: list[bytes] = []
        with suppress(queue.Empty):
            message = self._outgoing.get(timeout=self._silence / _HEARTBEATS)
            while message is not None:
                messages.append(message)
                message = self._outgoing.get_nowait()
            return messages, True
        return messages, False


class Followers:
    """The other ranks, seen from rank 0. Turns and calls belong to the torch thread.

    Args:
        group: all ranks.
        silence: seconds without a message after which a rank counts as lost.
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
        """Numbers by which learners are named in calls."""
        self._lock = threading.Lock()
        self._end: threading.Timer | None = None
        self._depth = 0
        self._learning = False
        self._begun = False
        self._in_step = True
        """False once rank 0 has failed within a call: the others wait for its part, so no call can follow."""
        self._results: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(self.count)]
        self._channels = [Channel(rank, silence) for rank in range(1, group.size)]
        self._readers = [
            threading.Thread(target=self._read, args=(rank, channel), name=f"reads rank {rank}", daemon=True)
            for rank, channel in enumerate(self._channels, 1)
        ]
        for reader in self._readers:
            reader.start()

    def check(self) -> None:
        """Raise `RankLostError` if a rank is lost."""
        if self.lost.done():
            self.lost.result()

    @contextmanager
    def turn(self, *, learning: bool) -> Iterator[None]:
        """Hold a turn, or a part of an outer turn; the other ranks take part from their first call on.

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
            if self._depth == 0 and self._begun and self._in_step:
                self._send_all(("end",))

    def call(
        self,
        target: Any,
        method: str,
        arguments: Sequence[tuple[Any, ...] | None],
        here: Callable[[], T] | None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[T | None, list[Any]]:
        """Have all ranks call a method; return the result of rank 0, and those of the others in order.

        Args:
            target: number of a learner, arguments of a scorer, or None for the rank itself.
            arguments: of each other rank; None for a rank without a share, whose result is None.
            here: the call on rank 0; None if it has no share.
            options: keyword arguments, the same on all.

        Raises:
            RankLostError: a rank is lost, or has failed.
        """
        self.check()
        if self._depth == 0:
            raise RuntimeError(f"{method} is no part of a turn: use `Policy.run` or `Policy.learn`")
        if not self._in_step:
            raise PolicyError(f"{method}: the other ranks still wait for a command in which rank 0 has failed")
        self._begun = True
        for channel, each in zip(self._channels, arguments, strict=True):
            channel.send(("call", self._learning, target, method, each, options or {}))
        result: T | None = None
        self._in_step = False
        with self.reporting_losses():
            if here is not None:
                result = here()
            elif self.model is not None and self.model.shards is not None:
                self.model.shards.begin(NO_SWEEP)
        results = self.results()
        self._in_step = True
        return result, results

    def results(self) -> list[Any]:
        """Wait for a result of each other rank."""
        results = [each.get() for each in self._results]
        self.check()
        return results

    def call_alike(self, target: Any, method: str, here: Callable[[], T], *arguments: Any) -> T:
        """Have all ranks call a method with the same arguments; return the result of rank 0."""
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
            here: the call on rank 0 for its share.
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
        """Copy the weights of an adapter, or all under full training, from rank 0 to the others."""
        self.call_alike(None, "copy_weights", lambda: self.group.copy_from_first(model.trainable(adapter)), adapter)

    def send(self, rank: int, message: tuple[Any, ...]) -> None:
        """Send a message to one rank, from any thread."""
        self._channels[rank - 1].send(message)

    def close(self) -> bool:
        """End the run of the other ranks; return True if all of them end, so that the group can be left."""
        is_whole = self._in_step and not self.lost.done()
        if not is_whole:
            reason = self.lost.exception() if self.lost.done() else "its part of a call failed"
            self._send_all(("failed", str(reason)))
        for channel in self._channels:
            channel.close()
        for reader in self._readers:
            reader.join(_CLOSE_SECONDS)
        if self._end is not None:
            self._end.cancel()
        return is_whole and not any(reader.is_alive() for reader in self._readers)

    def _send_all(self, message: tuple[Any, ...]) -> None:
        for channel in self._channels:
            channel.send(message)

    @contextmanager
    def reporting_losses(self) -> Iterator[None]:
        """Turn the failure of a collective operation with a lost rank into `RankLostError`."""
        try:
            yield
        except RankLostError:
            raise
        except RuntimeError:
            wait([self.lost], LOSS_SECONDS)  # the operation fails a moment before the loss is reported
            self.check()
            raise

    def _read(self, rank: int, channel: Channel) -> None:
        try:
            for kind, *values in channel.messages():
                if kind == "result":
                    self._results[rank - 1].put(values[0])
                elif kind == "delta":
                    number, delta, counters = values
                    self.counters[rank] = counters or self.counters[rank]
                    self.on_delta(number, delta)
                else:
                    raise RankLostError(f"rank {rank} failed: {values[0]}")
        except Exception as error:  # any: no later message would be handled
            if not isinstance(error, RankLostError):
                logger.exception("a message of rank %d failed", rank)
            self._report_loss(RankLostError(f"{error}; `resume` continues from the last checkpoint"))

    def _report_loss(self, error: RankLostError) -> None:
        with self._lock:
            if not self.lost.done():
                self._end = end_later(str(error))
                self.lost.set_exception(error)
        for each in self._results:
            each.put(None)  # `results` waits for no lost rank


def end_later(reason: str) -> threading.Timer:
    """Return a timer that ends the process after a minute."""

    def end() -> None:
        os.write(2, f"error: {reason}; ended at once\n".encode())
        os._exit(1)

    timer = threading.Timer(_END_SECONDS, end)
    timer.daemon = True
    timer.start()
    return timer
