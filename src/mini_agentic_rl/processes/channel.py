"""A child process that exchanges Python objects with its parent.

A child is a new interpreter with its own session, not a fork, and does not import the parent's main module. Parent
(`Child`) and child (`Channel`) exchange messages over a socket: a pickle behind its length in 8 bytes, big-endian. The
end of the stream means that the other side has ended; a child then ends itself and everything that it has started.
`at_death` covers a child that cannot do so. The child is not killed at once when its parent dies: it needs time to
clean up.

The socket is one end of a pair that the child inherits. Windows has no such pairs: there the child connects to a port
of the loopback interface, and sends its family's mark, which is secret, before anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import importlib
import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import psutil

from ..logging import PACKAGE_LOGGER, setup_logging
from .children import at_death, creation_time
from .family import FAMILY_VARIABLE, end_family, end_orphans, new_family
from .pickling import to_bytes

_HEADER: Final = struct.Struct("!Q")


def _frame(message: Any) -> bytes:
    """Return the bytes of one message."""
    payload = to_bytes(message)
    return _HEADER.pack(len(payload)) + payload


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
        data = _frame(message)
        with self._lock:
            self._connection.sendall(data)

    def receive(self) -> Any:
        """Wait for the next message and return it. One thread may receive at a time.

        Raises:
            EOFError: the other side is gone.
        """
        try:
            header = self._stream.read(_HEADER.size)
            payload = self._stream.read(*_HEADER.unpack(header)) if len(header) == _HEADER.size else b""
        except OSError:
            raise EOFError from None
        if not payload:
            raise EOFError
        return pickle.loads(payload)

    def end_others(self) -> None:
        """Kill the descendants of this process."""
        end_family(os.getpid(), self._mark, grace=0)

    def end_all(self, grace: float) -> None:
        """Kill the descendants after `grace` seconds, and then this process: its parent has ended."""
        time.sleep(grace)
        self.end_others()
        psutil.Process().kill()


def enter(connection: socket.socket, stream: BinaryIO, mark: str, entry: str, log_level: int | None) -> None:
    """Run `entry`, written `module:function`, with the parent's log level; the first call in a new process."""
    connection.set_inheritable(False)
    if log_level is not None:
        setup_logging(log_level, color=sys.stderr.isatty())
    module, _, name = entry.partition(":")
    with contextlib.suppress(ConnectionError, EOFError):  # the parent has ended
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


_BOOTSTRAP: Final = f"""
import os, pickle, socket, struct, sys
way, number = sys.argv[1].split(":")
if way == "descriptor":
    connection = socket.socket(fileno=int(number))
else:
    connection = socket.create_connection(("127.0.0.1", int(number)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(os.environ["{FAMILY_VARIABLE}"].encode())
stream = connection.makefile("rb")
sys.path[:], sys.argv[:], module, options = pickle.loads(stream.read(*struct.unpack("!Q", stream.read(8))))
__import__(module)
sys.modules[module].enter(connection, stream, **options)
"""
_IDENTIFY_SECONDS: Final = 5.0
"""Seconds that a connection to the loopback port may take to send the mark."""
_LAST_MESSAGES_SECONDS: Final = 0.2
"""Seconds to wait for messages of a process that has ended, while one of its descendants keeps the connection open."""
_ORPHAN_MARGIN: Final = 1.0
"""Seconds beyond those that a process takes to end itself, until it is ended from outside."""


def _start_process(name: str, mark: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a child; return it and the socket to it, on Windows the listener that it connects to."""
    command = [sys.executable, "-c", _BOOTSTRAP]
    environment = {**os.environ, FAMILY_VARIABLE: mark}
    if os.name != "posix":
        listener = socket.create_server(("127.0.0.1", 0))
        way = f"port:{listener.getsockname()[1]}"
        return subprocess.Popen([*command, way, name], stdin=subprocess.DEVNULL, env=environment), listener
    connection, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen(
            [*command, f"descriptor:{number}", name],
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
    return process, connection


class Child:
    """A running process, made by `start`. Its methods belong to that event loop, except `end`."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], mark: str, orphan_seconds: float) -> None:
        self.name = name
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = loop.create_future()
        """Exit code, once the process has ended; minus the number of the signal that ended it."""
        self._process = process
        self._mark = mark
        self._reading: asyncio.Task[Any] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._revoke = at_death(
            end_orphans.__module__,
            end_orphans.__name__,
            *(self.pid, creation_time(self.pid), mark, orphan_seconds + _ORPHAN_MARGIN),
        )
        threading.Thread(target=self._wait, args=(loop,), name=f"{name}-exit", daemon=True).start()

    @classmethod
    async def start(cls, name: str, entry: str, orphan_seconds: float) -> Child:
        """Start a process that calls `entry` (`module:function`) with its `Channel`.

        Args:
            name: of the process, in log lines and in the list of processes.
            entry: function of this package.
            orphan_seconds: seconds that the process may take to end itself and its descendants once this one has ended.
        """
        mark = new_family()
        process, connection = _start_process(name, mark)
        child = cls(name, process, mark, orphan_seconds)
        if os.name != "posix":
            with connection as listener:
                connection = await child._accept(listener)
        child._reader, child._writer = await asyncio.open_connection(sock=connection)
        logger = logging.getLogger(PACKAGE_LOGGER)
        log_level = logger.level if logger.handlers else None
        setup = pickle.dumps((sys.path, sys.argv, __name__, {"mark": mark, "entry": entry, "log_level": log_level}))
        child._writer.write(_HEADER.pack(len(setup)) + setup)
        return child

    async def _accept(self, listener: socket.socket) -> socket.socket:
        """Return the connection of the process; one that is at its end if the process ended before it connected."""
        loop, mark = asyncio.get_running_loop(), self._mark.encode()
        listener.setblocking(False)
        while True:
            accepting = asyncio.ensure_future(loop.sock_accept(listener))
            waiting: set[asyncio.Future[Any]] = {accepting, self.exited}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not accepting.done():
                accepting.cancel()
                connection, theirs = socket.socketpair()
                theirs.close()
                return connection
            connection, _ = accepting.result()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            received = b""
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                while len(received) < len(mark):
                    some = await asyncio.wait_for(
                        loop.sock_recv(connection, len(mark) - len(received)), _IDENTIFY_SECONDS
                    )
                    if not some:
                        break
                    received += some
            if hmac.compare_digest(received, mark):
                return connection
            connection.close()  # another program of this computer

    @property
    def pid(self) -> int:
        """Process id, which is the number of its session and its process group as well."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True until the process is known to have ended."""
        return not self.exited.done()

    def send(self, message: Any) -> None:
        """Send a message without waiting; one to a process that has ended is lost.

        Raises:
            Exception: the message cannot be pickled; nothing was sent.
        """
        data = _frame(message)
        if self.running and not self._writer.is_closing():
            self._writer.write(data)

    async def receive(self) -> Any:
        """Return the next message.

        Raises:
            EOFError: the process has ended, and everything that it sent has been received.
        """
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(_retrieve)
        reading = self._reading
        await asyncio.wait({reading, self.exited}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            await asyncio.wait({reading}, timeout=_LAST_MESSAGES_SECONDS)
        if not reading.done():
            raise EOFError
        self._reading = None
        return reading.result()

    def interrupt(self) -> None:
        """Send SIGINT to the process alone; nothing on Windows, which cannot."""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGINT)

    def end(self, grace: float) -> None:
        """End the process and its descendants: SIGTERM, and SIGKILL after `grace` seconds. Blocks; for any thread.

        If the process has ended, the descendants that it left behind are ended.
        """
        end_family(self.pid, self._mark, grace=grace)

    async def _read(self) -> Any:
        try:
            header = await self._reader.readexactly(_HEADER.size)
            payload = await self._reader.readexactly(*_HEADER.unpack(header))
        except OSError as error:
            raise EOFError from error
        return pickle.loads(payload)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        code = self._process.wait()
        self._revoke()

        def note() -> None:
            if not self.exited.done():
                self.exited.set_result(code)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(note)


def _retrieve(reading: asyncio.Task[Any]) -> None:
    """Mark the exception as seen: the last one is that the stream has ended."""
    if not reading.cancelled():
        reading.exception()


def describe_exit(code: int) -> str:
    """Return an exit code in words: `exited with code 3`, `was killed by SIGSEGV`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (perhaps the system ran out of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
