"""The child's end of the connection between a process and the one that started it.

A message is a pickle behind its length in 8 bytes, big-endian. The end of the stream means that the other side is gone.
An exception travels as a `RemoteFailure`, a form that needs none of the sender's classes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from ...logging import setup_logging
from .family import end_family
from .pickling import to_bytes

HEADER: Final = struct.Struct("!Q")


def frame(message: Any) -> bytes:
    """Return the bytes of one message."""
    payload = to_bytes(message)
    return HEADER.pack(len(payload)) + payload


class Channel:
    """The messages to and from the process that started this one."""

    def __init__(self, connection: socket.socket, stream: BinaryIO, mark: str) -> None:
        self._connection = connection
        self._stream = stream
        self._mark = mark
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        """Send a message, from any thread; blocks until it is on its way.

        Raises:
            OSError: the other side is gone.
            Exception: the message cannot be pickled; nothing was sent.
        """
        data = frame(message)
        with self._lock:
            self._connection.sendall(data)

    def receive(self) -> Any:
        """Wait for the next message and return it. One thread may receive at a time.

        Raises:
            EOFError: the other side is gone.
        """
        try:
            header = self._stream.read(HEADER.size)
            payload = self._stream.read(*HEADER.unpack(header)) if len(header) == HEADER.size else b""
        except OSError:
            raise EOFError from None
        if not payload:
            raise EOFError
        return pickle.loads(payload)

    def end_others(self) -> None:
        """Kill everything that this process has started."""
        end_family(os.getpid(), self._mark, grace=0)

    def end_all(self, grace: float) -> None:
        """Kill this process too if it has not ended in `grace` seconds, once the other side is seen to be gone."""
        time.sleep(grace)
        self.end_others()
        os.kill(os.getpid(), signal.SIGKILL)


def enter(connection: socket.socket, stream: BinaryIO, mark: str, entry: str, log_level: int | None) -> None:
    """Set a new process up as its parent is, and run `entry`, written `module:function`. The first call there."""
    connection.set_inheritable(False)
    if log_level is not None:
        setup_logging(log_level, color=sys.stderr.isatty())
    module, _, name = entry.partition(":")
    with contextlib.suppress(ConnectionError, EOFError):  # the other side is gone: nobody is left to tell
        getattr(importlib.import_module(module), name)(Channel(connection, stream, mark))


class RemoteTraceback(Exception):
    """The traceback of another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class RemoteFailure:
    """An exception as text, which needs none of the sender's classes."""

    type_name: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> RemoteFailure:
        """Describe an exception."""
        return cls(type(error).__name__, str(error), "".join(traceback.format_exception(error)))

    def as_exception(self) -> Exception:
        """Return an exception whose class has the name of the one that was raised, caused by its traceback."""
        kind = type(self.type_name, (Exception,), {"__module__": __name__})
        error: Exception = kind(self.message)
        error.__cause__ = RemoteTraceback(self.traceback)
        return error
