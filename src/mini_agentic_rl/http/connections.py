"""Bounds on connections: their number, bytes per read, time and size of a request's head, time without a reader.

Each connection takes a file descriptor. The head of a request must arrive within a time and a size, and a connection
whose client does not read the response is closed. If there are too many connections, a new one replaces another without
an answer under way: the one that has kept its head or the rest of its body back for longest. If that is less than a
second, as where many connect at once, the one that has been idle for longest since its last answer goes first.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from itertools import count
from operator import itemgetter
from typing import ClassVar, Final

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ..processes import max_open_files

HEAD_SECONDS: Final = 20.0
"""Time limit for the head of a request, from the begin of the connection or of the head."""
HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a head."""
READ_BYTES: Final = 4 * 1024
"""Bytes per read of a connection; with chunks of one byte, a read takes 20 ms."""
_WHOLE_BYTES: Final = 64 * 1024
"""Bytes per read of a body with a known length."""
TURN_SECONDS: Final = 0.02
"""Time for reading in one turn of the event loop; then the other connections wait for the next turn."""
FRAMING_BYTES: Final = 16 * 1024
"""Bytes of chunk framing that are always accepted; beyond it, up to 1/8 of the body."""
_CHUNK_SHARE: Final = 8
_TINY_CHUNKS: Final = (
    f"the chunks of the body are too small: more than {FRAMING_BYTES} bytes and 1/{_CHUNK_SHARE} of the body stand "
    "around them; send it with a Content-Length, or in chunks of 64 bytes and more"
)
STALLED_SECONDS: Final = 60.0
"""A client that reads less than `_LEAST_READ` bytes of its answer in this time, and not the rest of it, is cut off."""
_LEAST_READ: Final = 1024 * 1024
_MOST: Final = 4096
_KEPT_BACK_SECONDS: Final = 1.0
"""Time for the rest of a request, within which idle connections are replaced before this one."""
ACCEPTED_AT_ONCE: Final = 8
"""New connections that are accepted in one turn of the event loop; each takes about a millisecond."""
_SHARE: Final = 2
"""One file descriptor in so many is for connections; files, stores and upstreams need the others."""


def most_connections() -> int:
    """Return how many connections a server keeps open, by this process's limit of file descriptors."""
    limit = max_open_files()
    return _MOST if limit is None else max(16, min(_MOST, limit // _SHARE))


class ReadingTurn:
    """Reads of the connections of one server in one turn of the event loop."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._waiting: list[tuple[float, int, BoundedConnection]] = []
        """Connections with unread data; the one whose request has taken the least time comes first."""
        self._numbers = count()

    @property
    def over(self) -> bool:
        """True if further reads wait for the next turn."""
        return self._spent >= TURN_SECONDS

    def wait(self, connection: BoundedConnection) -> None:
        """Call `read_held` of a connection in a later turn."""
        heapq.heappush(self._waiting, (connection.seconds, next(self._numbers), connection))

    def read(self, connection: BoundedConnection, data: bytes) -> None:
        """Read data of a connection, and measure the time."""
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
    """Uvicorn's protocol within the bounds of this file. Class variables are set per server."""

    most = _MOST
    ending: ClassVar[set[BoundedConnection]] = set()
    """Aborted connections that are still closing."""
    headless: ClassVar[dict[BoundedConnection, float]] = {}
    """Connections from which the head of a request is awaited, and since when; the longest awaited comes first."""
    idle: ClassVar[dict[BoundedConnection, None]] = {}
    """Connections that have read their answer and sent no further request; the longest idle one comes first."""
    most_unfinished = _MOST
    """Most requests with an incomplete body. Each is a task of a hundred objects; with 4,096 of them the garbage
    collector pauses the server for a third of a second."""
    unfinished: ClassVar[dict[BoundedConnection, float]] = {}
    """Connections with an incomplete body, and since when they are silent; the longest silent one comes first."""
    turn: ClassVar[ReadingTurn] = ReadingTurn()
    """Shared by the connections of one server."""
    head_seconds = HEAD_SECONDS
    stalled_seconds = STALLED_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._head_bytes = 0
        self._framing_bytes = 0.0
        self._body_left = 0
        self._held = b""
        self.seconds = 0.0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stalled_timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self.transport.max_size = READ_BYTES
        self.transport.set_write_buffer_limits(0)  # writing is paused until the client has read everything
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
        """Read the data that waited for its turn."""
        data, self._held = self._held, b""
        if not self.transport.is_closing():
            self.turn.read(self, data)
            if not self.flow.read_paused:
                self.transport.resume_reading()

    def read(self, data: bytes) -> None:
        """Read data: a head, a body, or parts of them."""
        fresh = not self._answering()
        self.idle.pop(self, None)
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
        # Read no more than the rest of the body at once: tiny chunks may follow.
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
        self._drop_from_queues()
        self._drop_stalled_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_if_idle()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._drop_stalled_timer()
        super().resume_writing()
        self._note_if_idle()

    def _note_if_idle(self) -> None:
        waiting = self._answering() or self._stalled_timer is not None or self._head_timer is not None
        if not waiting and not self.transport.is_closing():
            self.idle[self] = None

    def _await_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()

        def check() -> None:
            if self.transport.get_write_buffer_size() > unread - _LEAST_READ:
                self._cut_off()
            else:
                self._await_reader()

        self._stalled_timer = self.loop.call_later(self.stalled_seconds, check)

    def _drop_stalled_timer(self) -> None:
        if self._stalled_timer is not None:
            self._stalled_timer.cancel()
            self._stalled_timer = None

    def _answering(self) -> bool:
        """Return True from the end of a request's head to the end of its response."""
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        if self._head_timer is None:
            self.headless[self] = time.monotonic()
            self._head_timer = self.loop.call_later(self.head_seconds, self._cut_off)

    def _await_body(self) -> None:
        """Update `unfinished` for this connection, and abort the first of them if there are too many."""
        self.unfinished.pop(self, None)
        if self._answering() and self.cycle.more_body and not self.transport.is_closing():
            self.unfinished[self] = time.monotonic()
            if len(self.unfinished) > self.most_unfinished:
                next(iter(self.unfinished))._cut_off()

    def _drop_head_timer(self) -> None:
        self.headless.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _drop_from_queues(self) -> None:
        self.unfinished.pop(self, None)
        self.idle.pop(self, None)
        self._drop_head_timer()

    def _make_room(self) -> None:
        """Abort the surplus connections; this one, if all the others wait for an answer."""
        while len(self.connections) - len(self.ending) > self.most:
            firsts = [next(iter(queue.items())) for queue in (self.headless, self.unfinished) if queue]
            first, since = min(firsts, key=itemgetter(1), default=(self, math.inf))
            if self.idle and time.monotonic() - since < _KEPT_BACK_SECONDS:
                first = next(iter(self.idle))
            first._cut_off()
            if first is self:
                return

    def _cut_off(self) -> None:
        self._drop_from_queues()
        if self in self.connections:  # also one that closes once its client has read everything
            self.ending.add(self)
            self.transport.abort()
