"""Rank 0's team: the other ranks, what they are told, and what they answer.

Weights change in turns. A turn begins for the others with the first thing that they are told in it, and from then to
its end they sample nothing, as rank 0 does. What is told is done by all of them in the order in which it is told; the
block of `ask` is rank 0's own part of it.

    with team.turn(learning=True):
        with team.ask("optim_step", [(number,)] * team.others) as answers:
            own = learner.step()
        found = answers.values
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...tokens import TokenDelta, TokenRequest
from ..engine import EngineCounters
from ..launch import Launch
from ..model import PolicyModel
from ..rank_group import RankGroup
from .link import RankLink, RankLostError

if TYPE_CHECKING:
    from ..shards import ShardedBase

logger = logging.getLogger(__name__)

_HEARD_WITHIN: Final = 3.0
_ENDED_AFTER: Final = 60.0
"""Seconds after a rank was lost in which this process ends by itself; a card may wait for the lost one for ever."""


@dataclass
class RankAnswers:
    """Answers to one command; complete after the block of `Team.ask`."""

    missing: set[int]
    found: dict[int, Any] = field(default_factory=dict)

    @property
    def values(self) -> list[Any]:
        """Those of the ranks that were asked, in order."""
        return [self.found.get(rank) for rank in sorted({*self.found, *self.missing})]


class Team:
    """Ranks 1, 2 … of a launch. Turns and commands belong to the torch thread.

    Args:
        links: to each of them, in order.
        log: told of what one of them logs, with its number.
    """

    def __init__(self, launch: Launch, links: Sequence[RankLink], log: Callable[[int, str], None]) -> None:
        self.launch = launch
        self.others = len(links)
        self.group: RankGroup | None = None
        """Adds up gradients; there once the ranks have joined it."""
        self.lost: Future[None] = Future()
        """Fails with the reason once a rank has gone."""
        self.shards: ShardedBase | None = None
        """This rank's part of the base; all ranks then take part in each pass."""
        self.counters = [EngineCounters() for _ in links]
        """Work of their engines so far."""
        self.on_delta: Callable[[int, int, TokenDelta], None] = lambda rank, number, delta: None
        """Told of each delta of a request, by the number that it was sent with."""
        self._links = links
        self._log = log
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._asked: dict[int, RankAnswers] = {}
        self._forgotten: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ready: set[int] = set()
        self._ending: threading.Timer | None = None
        self._depth = 0
        self._learning = False
        self._begun = False
        for rank, link in enumerate(links, 1):
            link.start(self._hears(rank), self._loses(rank))

    def wait_until_ready(self) -> None:
        """Wait until every rank has loaded the policy.

        Raises:
            RankLostError: one has gone.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.lost.done() or len(self._ready) == self.others)
        self.check()

    def check(self) -> None:
        """Raise what was lost, if anything was.

        Raises:
            RankLostError: a rank has gone.
        """
        if self.lost.done():
            self.lost.result()

    @contextmanager
    def turn(self, *, learning: bool) -> Iterator[None]:
        """Hold a turn, within another one a part of it; the others take part once they are told something.

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
            if self._depth == 0 and self._begun:
                self.tell(("end",))

    @contextmanager
    def ask(self, command: str, arguments: Sequence[tuple[Any, ...] | None]) -> Iterator[RankAnswers]:
        """Have the others do something while the block runs, and wait for them after it.

        Args:
            command: a name of `Commands`.
            arguments: of each of them; None leaves one out, but for its part in sharded layers.

        Raises:
            RankLostError: one has gone, or could not do it.
        """
        self.check()
        if self._depth == 0:
            raise RuntimeError(f"{command} is no part of a turn: use `Policy.run` or `Policy.learn`")
        number = next(self._numbers)
        asked = {rank for rank, given in enumerate(arguments, 1) if given is not None}
        answers = self._asked[number] = RankAnswers(set(asked))
        if not self._begun:
            self._begun = True
            self.tell(("begin", self._learning))
        while not self._forgotten.empty():
            self.tell(("do", next(self._numbers), "forget", (self._forgotten.get(),)))
        for rank, link in enumerate(self._links, 1):
            if rank in asked:
                link.send(("do", number, command, arguments[rank - 1]))
            elif self.shards is not None:
                link.send(("do", next(self._numbers), "take_part", ()))
        try:
            yield answers
            with self._changed:
                self._changed.wait_for(lambda: self.lost.done() or not answers.missing)
            if answers.missing:
                self.check()
        except RankLostError:
            raise
        except RuntimeError:
            with self._changed:  # a sum that broke has broken because a rank has gone, which is heard a moment later
                self._changed.wait_for(self.lost.done, timeout=_HEARD_WITHIN)
            self.check()
            raise
        finally:
            del self._asked[number]

    def new_number(self) -> int:
        """Return a number for a learner."""
        return next(self._numbers)

    def forget_later(self, number: int) -> None:
        """Have the others give up a learner that nobody uses any more, with the next command; from any thread."""
        self._forgotten.put(number)

    def copy_weights(self, model: PolicyModel, adapter: str) -> None:
        """Give the others the weights of an adapter, or all under full training, that this rank has."""
        with self.ask("take_weights", [(adapter,)] * self.others):
            if self.group is not None:
                self.group.copy_from_first(model.trainable(adapter))

    def tell(self, message: tuple[Any, ...]) -> None:
        """Send a message to all of them."""
        for link in self._links:
            link.send(message)

    def sample(self, rank: int, number: int, request: TokenRequest) -> None:
        """Have a rank sample; its deltas come to `on_delta`."""
        self._links[rank - 1].send(("sample", number, request))

    def cancel(self, rank: int, number: int) -> None:
        """Have a rank end a request."""
        self._links[rank - 1].send(("cancel", number))

    def close(self) -> None:
        """Let the others go."""
        self.tell(("goodbye",))
        for link in self._links:
            link.close()
        if self._ending is not None:
            self._ending.cancel()

    def _hears(self, rank: int) -> Callable[[Any], None]:
        def on_message(message: Any) -> None:
            kind = message[0]
            if kind == "delta":
                self.on_delta(rank, message[1], message[2])
            elif kind == "counters":
                self.counters[rank - 1] = message[1]
            elif kind == "log":
                self._log(rank, message[1])
            elif kind == "failed":
                self._lose(f"rank {rank} failed: {message[1]}")
            else:
                with self._changed:
                    if kind == "ready":
                        self._ready.add(rank)
                    elif (answers := self._asked.get(message[1])) is not None:
                        answers.found[rank] = message[2]
                        answers.missing.discard(rank)
                    self._changed.notify_all()

        return on_message

    def _loses(self, rank: int) -> Callable[[str], None]:
        return lambda reason: self._lose(f"rank {rank} {reason}")

    def _lose(self, reason: str) -> None:
        with self._changed:
            if not self.lost.done():
                self._ending = threading.Timer(_ENDED_AFTER, end_at_once, [reason])
                self._ending.daemon = True
                self._ending.start()
                self.lost.set_exception(RankLostError(f"{reason}; `resume` goes on from the last checkpoint"))
            self._changed.notify_all()


def end_at_once(reason: str) -> None:
    """End the process: its torch thread waits for a rank that does not come."""
    os.write(2, f"error: {reason}; ended at once\n".encode())
    os._exit(1)
