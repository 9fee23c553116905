"""A link between rank 0 and another one: messages in order, both ways, and the news that the other side has gone.

    4 bytes    length        of what follows
    batch                    pickled: a list of pickled messages; an empty one only says "I am here"

Who connects proves that it has the key, and so does who answers (HMAC-SHA256 over a nonce of the other's), before a
single byte is unpickled: a link is as trusted as the process group beside it. A side that dies closes the connection; a
host that vanishes, or a process that stands still, falls silent, and is given up after `silence` seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import pickle
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

from ..errors import PolicyError

logger = logging.getLogger(__name__)

_LENGTH: Final = struct.Struct("!Q")
_NONCE: Final = 32
_BEATS: Final = 4
"""Signs of life within the seconds of silence that end a link."""


class RankLostError(PolicyError):
    """Report that a rank has gone, so that the run cannot go on."""


class RankLink:
    """One side of a connection whose other side is known to have the key.

    Args:
        connection: the socket.
        peer: name of the other side, for messages.
        silence: seconds without a word after which it counts as gone.
    """

    def __init__(self, connection: socket.socket, peer: str, silence: float) -> None:
        self.peer = peer
        self._socket = connection
        self._silence = silence
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._over = False
        self._on_message: Callable[[Any], None] = lambda message: None
        self._on_lost: Callable[[str], None] = lambda reason: None
        self._threads: list[threading.Thread] = []
        connection.settimeout(silence)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self, on_message: Callable[[Any], None], on_lost: Callable[[str], None]) -> None:
        """Begin to receive.

        Args:
            on_message: called with each message, one after another, on a thread of the link.
            on_lost: called once with the reason if the other side goes before `close`; on a thread of the link.
        """
        self._on_message, self._on_lost = on_message, on_lost
        for work, name in ((self._read, "reads"), (self._write, "writes")):
            thread = threading.Thread(target=work, name=f"{self.peer} {name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def send(self, message: Any) -> None:
        """Send a message; from any thread, without waiting. To a side that has gone nothing is sent."""
        self._out.put(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def close(self, seconds: float = 5.0) -> None:
        """Send what waits, within so many seconds, and end."""
        with self._lock:
            self._over = True
        self._out.put(None)
        for thread in self._threads[1:]:
            if thread is not threading.current_thread():
                thread.join(seconds)
        self._shut()
        for thread in self._threads[:1]:
            if thread is not threading.current_thread():
                thread.join(seconds)

    def _lose(self, reason: str) -> None:
        with self._lock:
            first, self._over = not self._over, True
        self._out.put(None)
        self._shut()
        if first:
            self._on_lost(reason)

    def _shut(self) -> None:
        with contextlib.suppress(OSError):  # the other side was quicker
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self) -> None:
        try:
            while True:
                size = _LENGTH.unpack(receive(self._socket, _LENGTH.size))[0]
                for payload in pickle.loads(receive(self._socket, size)):
                    self._on_message(pickle.loads(payload))
        except TimeoutError:
            self._lose(f"was silent for {self._silence:g} seconds (`rank_timeout`)")
        except (OSError, EOFError):
            self._lose("has closed its connection")
        except Exception as error:  # of whatever a message did: nothing after it would be heard
            logger.exception("a message of %s failed", self.peer)
            self._lose(f"sent what cannot be used ({error})")

    def _write(self) -> None:
        try:
            while True:
                batch, over = self._waiting()
                data = pickle.dumps(batch, protocol=pickle.HIGHEST_PROTOCOL)
                self._socket.sendall(_LENGTH.pack(len(data)) + data)
                if over:
                    return
        except TimeoutError:
            self._lose(f"took nothing for {self._silence:g} seconds (`rank_timeout`)")
        except OSError:
            self._lose("has closed its connection")

    def _waiting(self) -> tuple[list[bytes], bool]:
        """Return all that waits to be sent, or nothing when it is time for a sign of life; and whether that is all."""
        batch: list[bytes] = []
        try:
            first = self._out.get(timeout=self._silence / _BEATS)
        except queue.Empty:
            return batch, False
        while first is not None:
            batch.append(first)
            try:
                first = self._out.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True


def receive(connection: socket.socket, size: int) -> bytes:
    """Return exactly so many bytes.

    Raises:
        EOFError: the connection ends before.
        OSError: it breaks, or nothing comes in time.
    """
    found = bytearray(size)
    view, got = memoryview(found), 0
    while got < size:
        count = connection.recv_into(view[got:])
        if count == 0:
            raise EOFError
        got += count
    return bytes(found)


def prove(connection: socket.socket, key: bytes, *, asks: bool) -> bool:
    """Prove that this side has the key, and have the other side prove it.

    Args:
        asks: whether this side begins; the other one must not.

    Returns:
        False if the other side does not have it.

    Raises:
        OSError: the connection breaks, or nothing comes in time.
        EOFError: it ends.
    """
    own = secrets.token_bytes(_NONCE)
    names = (b"asks", b"answers") if asks else (b"answers", b"asks")

    def proof(name: bytes, nonce: bytes) -> bytes:
        return hmac.new(key, name + nonce, hashlib.sha256).digest()

    connection.sendall(own)
    theirs = receive(connection, _NONCE)
    connection.sendall(proof(names[0], theirs))
    return hmac.compare_digest(receive(connection, hashlib.sha256().digest_size), proof(names[1], own))
