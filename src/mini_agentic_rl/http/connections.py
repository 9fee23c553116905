"""Connections within bounds: of their number, of what is read of them at once, of the time that a request's head may
take, and of waiting for a reader.

A connection takes a descriptor for as long as it stays open, and descriptors are few. So each has to get on: its
request's head has to arrive within a time and a size, and whoever reads no more of an answer is cut off. When there are
too many all the same, a newcomer takes the place of the one that has kept its request to itself for longest; and among
those whose body is awaited, of the one that has sent nothing for longest.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from itertools import count
from typing import ClassVar, Final

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ..processes import max_open_files

HEAD_SECONDS: Final = 20.0
"""The head of a request has to arrive within this time, from the connection's beginning or from the head's."""
HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a head."""
READ_BYTES: Final = 4 * 1024
"""Bytes that are read of one connection at once: chunks of one byte take 20 ms then."""
_WHOLE_BYTES: Final = 64 * 1024
"""Bytes that are read at once of a body whose length is known."""
TURN_SECONDS: Final = 0.02
"""Time in a turn of the event loop, after which connections that have sent something wait for the next one."""
FRAMING_BYTES: Final = 16 * 1024
"""Bytes around the chunks of a body that are always taken; more are, up to this share of the body."""
_CHUNK_SHARE: Final = 8
_TINY_CHUNKS: Final = (
    f"the chunks of the body are too small: more than {FRAMING_BYTES} bytes and 1/{_CHUNK_SHARE} of the body stand "
    "around them; send it with a Content-Length, or in chunks of 64 bytes and more"
)
STALLED_SECONDS: Final = 60.0
"""An answer whose reader takes nothing of it for so long is given up."""
_MOST: Final = 4096
_SOUGHT_AT_ONCE: Final = 64
"""One connection in so many is looked out, when there are too many, to make room for this newcomer and the next ones:
looking costs as much as there are."""
ACCEPTED_AT_ONCE: Final = 8
"""Newcomers that are let in before those who are in have their turn: with those that make room for them, each takes
about a millisecond."""
_SHARE: Final = 2
"""One descriptor in so many is for connections: files, stores and upstreams need some too."""


def most_connections() -> int:
    """Return how many connections one server holds open, going by the descriptors that this process may have."""
    limit = max_open_files()
    return _MOST if limit is None else max(16, min(_MOST, limit // _SHARE))


class ReadingTurn:
    """What the connections of one server read in one turn of the event loop."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._waiting: list[tuple[float, int, BoundedConnection]] = []
        """Those that have sent something beyond it; the one whose request has taken the least time comes first."""
        self._numbers = count()

    @property
    def over(self) -> bool:
        """True if who has sent something waits for the next turn."""
        return self._spent >= TURN_SECONDS

    def wait(self, connection: BoundedConnection) -> None:
        """Have `read_held` of a connection called in a later turn."""
        heapq.heappush(self._waiting, (connection.seconds, next(self._numbers), connection))

    def read(self, connection: BoundedConnection, data: bytes) -> None:
        """Read data of a connection, and note the time."""
        if not self._spent:
            connection.loop.call_soon(self._end)
        began = time.perf_counter()
        connection.read(data)
        took = time.perf_counter() - began
        connection.seconds += took
        self._spent += took

    def _end(self) -> None:
        self._spent = 0.0
        while self._waiting and not self.over:
            heapq.heappop(self._waiting)[2].read_held()


class BoundedConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # uvicorn chooses its base when it runs
    """Uvicorn's own protocol, whichever of its two is installed, within the bounds of this file."""

    most = _MOST
    ending: ClassVar[set[BoundedConnection]] = set()
    """Those of one server that were cut off, until they are gone."""
    next_out: ClassVar[deque[BoundedConnection]] = deque()
    """Those of one server that make room for newcomers, in order, if they still keep their request back then."""
    most_unfinished = _MOST
    """Most requests whose body is awaited. Each is a task of a hundred objects, and everybody waits when Python's
    collector of garbage looks through them: a third of a second where there are 4,096."""
    unfinished: ClassVar[dict[BoundedConnection, None]] = {}
    """Those of one server whose request's body is awaited; the one that has sent nothing for longest comes first."""
    turn: ClassVar[ReadingTurn] = ReadingTurn()
    """Shared by those of one server."""
    head_seconds = HEAD_SECONDS
    stalled_seconds = STALLED_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._head_bytes = 0
        self._framing_bytes = 0.0
        self._body_left = 0
        self._held = b""
        self.seconds = 0.0
        self._since = time.monotonic()
        self._head_timer: asyncio.TimerHandle | None = None
        self._stalled_timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self.transport.max_size = READ_BYTES
        if len(self.connections) - len(self.ending) > self.most:
            self._make_room()
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if not self._held:
            if not self.turn.over:
                self.turn.read(self, data)
                return
            self.turn.wait(self)
        self._held += data
        self.transport.pause_reading()

    def read_held(self) -> None:
        """Read what waited for its turn."""
        data, self._held = self._held, b""
        if not self.transport.is_closing():
            self.turn.read(self, data)
            if not self.flow.read_paused:
                self.transport.resume_reading()

    def read(self, data: bytes) -> None:
        """Read what has been sent: a head, a body, or parts of them."""
        fresh = not self._answering()
        if fresh:
            self._await_head()
            self._head_bytes += len(data)
            self._framing_bytes = self.seconds = 0.0
            self._body_left = 0
        cycle, known = self.cycle, 0 if fresh else len(self.cycle.body)
        super().data_received(data)
        if self._answering() and self.cycle.more_body:
            body = len(self.cycle.body) - (known if cycle is self.cycle else 0)
            if cycle is not self.cycle:
                self._body_left = int(dict(self.headers).get(b"content-length", 0))
            elif not self._body_left:
                self._framing_bytes += len(data) - body - body / _CHUNK_SHARE
            self._body_left = max(0, self._body_left - body)
            if self._framing_bytes > FRAMING_BYTES:
                self._refuse_chunks()
        # No more than the rest of the body is read at once: what comes after it may be tiny chunks.
        self.transport.max_size = max(READ_BYTES, min(self._body_left, _WHOLE_BYTES))
        if self._answering() or not fresh:
            self._head_bytes = 0
            self._drop_head_timer()
        elif self._head_bytes > HEAD_BYTES:
            self._cut_off()
        self._await_body()

    def _refuse_chunks(self) -> None:
        if self.cycle.response_started or self.transport.is_closing():
            self._cut_off()
        else:
            self.send_400_response(_TINY_CHUNKS)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ending.discard(self)
        self.unfinished.pop(self, None)
        self._drop_head_timer()
        self._drop_stalled_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled_timer is None:
            self._stalled_timer = self.loop.call_later(self.stalled_seconds, self._cut_off)

    def resume_writing(self) -> None:
        self._drop_stalled_timer()
        super().resume_writing()

    def _drop_stalled_timer(self) -> None:
        if self._stalled_timer is not None:
            self._stalled_timer.cancel()
            self._stalled_timer = None

    def _answering(self) -> bool:
        """Return True from when a request's head has been read until its answer is complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._since = time.monotonic()
            self._head_timer = self.loop.call_later(self.head_seconds, self._cut_off)

    def _await_body(self) -> None:
        """Count this connection among those whose request's body is awaited, if it is one of them; the first of them
        is cut off if they are too many."""
        self.unfinished.pop(self, None)
        if self._answering() and self.cycle.more_body and not self.transport.is_closing():
            self.unfinished[self] = None
            if len(self.unfinished) > self.most_unfinished:
                first = next(iter(self.unfinished))
                del self.unfinished[first]
                first._cut_off()

    def _drop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _kept_back(self) -> tuple[int, float] | None:
        """Return how long this connection has given nothing to answer, as a number that is smaller the longer it is;
        None if it waits for an answer."""
        if not self._answering():
            begun = self._head_timer is not None
            return (0 if begun else 1, self._since)
        return (0, self._since) if self.cycle.more_body else None

    def _make_room(self) -> None:
        """Close as many connections as there are too many, those first that have kept their request, or the rest of
        it, back for longest. One at a time: each end is work, for which those who are answered wait. This one is closed
        if all the others wait for an answer."""
        sought = False
        while len(self.connections) - len(self.ending) > self.most:
            if self.next_out:
                longest = self.next_out.popleft()
                if longest in self.connections and longest._kept_back() is not None:
                    longest._cut_off()
            elif sought:
                self._cut_off()
                return
            else:
                self._seek()
                sought = True

    def _seek(self) -> None:
        """Look out those that have kept their request back for longest."""
        open_ones = [each for each in self.connections if not each.transport.is_closing()]
        kept = [(back, number) for number, each in enumerate(open_ones) if (back := each._kept_back()) is not None]
        longest = heapq.nsmallest(max(1, self.most // _SOUGHT_AT_ONCE), kept)
        self.next_out.extend(open_ones[number] for _, number in longest)

    def _cut_off(self) -> None:
        if not self.transport.is_closing():
            self.ending.add(self)
            self.transport.abort()
