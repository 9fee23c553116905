"""Deltas on their way from the threads that make them to one event loop.

One wake-up of the event loop brings what has come for all answers. What goes into the middle of answers that may be
joined goes on in pulses: all of them then get what has come since the last pulse, each as one delta. The more answers
are streamed, the further apart are the pulses, so that the gateway's work does not grow with their number; it shares
the interpreter with the engine. One answer alone gets each token at once, and no answer ever waits for its first tokens
or for its last.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Final

from ..tokens import TokenDelta

_APART_SECONDS: Final = 0.005
"""Between two pulses, for each answer that is being joined: at most so many events a second, however many answers."""
_LONGEST_SECONDS: Final = 0.25
"""Between two pulses: nobody who reads along should wait longer."""
_AT_ONCE: Final = 1000
"""Tokens and log-probabilities of alternatives, about, that are given out in one turn of the event loop."""


class HandOver:
    """Hands deltas over to one event loop. All but `Inbox.post` is used from that loop only.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._posted: deque[tuple[Inbox, TokenDelta]] = deque()
        self._called = False
        """True if the loop has been asked to collect, and has not begun to."""
        self._joining: set[Inbox] = set()
        """Inboxes that are joined, from their first delta to their last."""
        self._due: deque[Inbox] = deque()
        """Inboxes that may be read, as soon as those before them were."""
        self._held: set[Inbox] = set()
        """Those of them that have something for the next pulse."""
        self._last_pulse = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def open(self, *, joined: bool) -> Inbox:
        """Return an inbox for one answer, to be closed whatever happens.

        Args:
            joined: whether its deltas may wait for each other.
        """
        return Inbox(self, joined)

    def post(self, inbox: Inbox, delta: TokenDelta) -> None:
        """See `Inbox.post`."""
        self._posted.append((inbox, delta))
        if not self._called and not self.loop.is_closed():
            self._called = True
            self.loop.call_soon_threadsafe(self._collect)

    def forget(self, inbox: Inbox) -> None:
        """Send nothing more to the inbox."""
        self._joining.discard(inbox)
        self._held.discard(inbox)

    def _collect(self) -> None:
        self._called = False  # what is posted from here on asks anew, so nothing stays behind
        while self._posted:
            inbox, delta = self._posted.popleft()
            inbox.put(delta)
            if delta.finish_reason is not None:
                self.forget(inbox)
                self._let_read(inbox)
            elif inbox in self._joining:
                self._held.add(inbox)
            else:
                self._let_read(inbox)
                if inbox.joined and not inbox.closed:
                    self._joining.add(inbox)
        if self._held:
            self._pulse_or_wait()

    def _pulse_or_wait(self) -> None:
        apart = min(_LONGEST_SECONDS, _APART_SECONDS * len(self._joining))
        left = self._last_pulse + apart - self.loop.time()
        if left <= 0:
            self._pulse()
        elif self._timer is None:
            self._timer = self.loop.call_later(left, self._pulse)

    def _pulse(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._last_pulse = self.loop.time()
        self._let_read(*self._held)
        self._held.clear()

    def _let_read(self, *inboxes: Inbox) -> None:
        begun = bool(self._due)
        self._due.extend(inboxes)
        if not begun:
            self._give_out()

    def _give_out(self) -> None:
        """Let inboxes be read: as many as one turn of the event loop is to hold, the others in the next ones."""
        size = 0
        while self._due and size < _AT_ONCE:
            inbox = self._due.popleft()
            size += inbox.size
            inbox.ready.set()
        if self._due:
            self.loop.call_soon(self._give_out)


class Inbox:
    """The deltas of one answer that were not read yet."""

    def __init__(self, hand_over: HandOver, joined: bool) -> None:
        self.joined = joined
        self.closed = False
        self.ready = asyncio.Event()
        """Set when what is in here may be read."""
        self._hand_over = hand_over
        self._deltas: list[TokenDelta] = []

    @property
    def size(self) -> int:
        """Number of tokens, and of log-probabilities of alternatives, that were not read yet."""
        return sum(len(delta.token_ids) + sum(map(len, delta.top_logprobs)) for delta in self._deltas)

    def post(self, delta: TokenDelta) -> None:
        """Send the next delta; from any thread, one after the other."""
        self._hand_over.post(self, delta)

    def put(self, delta: TokenDelta) -> None:
        """Take the next delta in."""
        if not self.closed:
            self._deltas.append(delta)

    async def get(self) -> TokenDelta:
        """Return what has come, as one delta, once it may be read: all of it, or as much as one version sampled."""
        while not self._deltas or not self.ready.is_set():
            self.ready.clear()
            await self.ready.wait()
        alike = next((n for n, delta in enumerate(self._deltas) if delta.version != self._deltas[0].version), None)
        deltas, self._deltas = self._deltas[:alike], [] if alike is None else self._deltas[alike:]
        if not self._deltas:
            self.ready.clear()
        return deltas[0] if len(deltas) == 1 else _joined(deltas)

    def close(self) -> None:
        """Take nothing more in."""
        self.closed = True
        self._hand_over.forget(self)


def _joined(deltas: Sequence[TokenDelta]) -> TokenDelta:
    first, last = deltas[0], deltas[-1]
    forced: tuple[bool, ...] = ()
    if any(delta.forced for delta in deltas):
        forced = tuple(chain.from_iterable(delta.forced or (False,) * len(delta.token_ids) for delta in deltas))
    return TokenDelta(
        token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
        logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
        top_logprobs=tuple(chain.from_iterable(delta.top_logprobs for delta in deltas)),
        forced=forced,
        finish_reason=last.finish_reason,
        version=first.version,
        cached_tokens=max(delta.cached_tokens for delta in deltas),
        failure=last.failure,
    )
