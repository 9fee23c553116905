"""The parent's end: a fresh Python process with a session of its own, and a connection to it.

The process is a new interpreter, not a fork, so threads and libraries of the parent cannot disturb it, and it does not
import the parent's main module. Its end of the connection tells it when the parent is gone; then it ends itself and
what it has started. Where it cannot, because it computes without looking up, the call left with `at_death` does so. No
signal is tied to the parent's death: it would leave the process no time to end what it has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from typing import Any, Final

import psutil

from ...errors import UserError
from ...logging import PACKAGE_LOGGER
from ...processes import at_death
from .channel import HEADER, frame
from .family import FAMILY_VARIABLE, end_family, new_family

_BOOTSTRAP = """
import pickle, socket, struct, sys
connection = socket.socket(fileno=int(sys.argv[1]))
stream = connection.makefile("rb")
sys.path[:], sys.argv[:], module, options = pickle.loads(stream.read(*struct.unpack("!Q", stream.read(8))))
__import__(module)
sys.modules[module].enter(connection, stream, **options)
"""

_LAST_WORDS_SECONDS = 0.2
"""Seconds to wait for messages of a process that has ended, while something else keeps its connection open."""
_ORPHAN_MARGIN: Final = 1.0
"""Seconds beyond those that a process takes to end itself, until it is ended from outside."""


class Child:
    """A running process. Made by `start`, and used on that event loop, but for `end`."""

    def __init__(self, name: str, entry: str, orphan_seconds: float) -> None:
        if os.name != "posix":
            raise UserError(
                "processes of their own need Linux or macOS: use `isolation='thread'` and `strategy='shm'` here"
            )
        self.name = name
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Exit code, once the process has ended; minus the number of the signal that ended it."""
        self._mark = new_family()
        self._reading: asyncio.Task[Any] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, str(theirs.fileno()), name],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, FAMILY_VARIABLE: self._mark},
            )
        self._revoke = at_death(
            f"{__package__}.family",
            "end_orphans",
            self.pid,
            _created(self.pid),
            self._mark,
            orphan_seconds + _ORPHAN_MARGIN,
        )
        threading.Thread(
            target=self._watch, args=(asyncio.get_running_loop(),), name=f"{name}-exit", daemon=True
        ).start()
        logger = logging.getLogger(PACKAGE_LOGGER)
        options = {"mark": self._mark, "entry": entry, "log_level": logger.level if logger.handlers else None}
        setup = pickle.dumps((sys.path, sys.argv, f"{__package__}.channel", options))
        self._first = HEADER.pack(len(setup)) + setup

    @classmethod
    async def start(cls, name: str, entry: str, orphan_seconds: float) -> Child:
        """Start a process that calls `entry` (`module:function`, of this package) with its `Channel`.

        Args:
            orphan_seconds: how long it takes at most to end itself and what it has started once this process is gone.

        Raises:
            UserError: the system offers no such processes.
        """
        child = cls(name, entry, orphan_seconds)
        child._reader, child._writer = await asyncio.open_unix_connection(sock=child._connection)
        child._writer.write(child._first)
        return child

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
        data = frame(message)
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
            await asyncio.wait({reading}, timeout=_LAST_WORDS_SECONDS)
        if not reading.done():
            raise EOFError
        self._reading = None
        return reading.result()

    def signal(self, number: int) -> None:
        """Send a signal to the process alone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def hang_up(self) -> None:
        """Close the connection: a process that has nothing to do then ends by itself."""
        if self._reading is not None:
            self._reading.cancel()
        self._writer.close()

    def end(self, grace: float) -> None:
        """End the process and all that it has started: SIGTERM, and SIGKILL after `grace` seconds. Blocks; any thread.

        Harmless on a process that has ended: what it has left behind is ended.
        """
        end_family(self.pid, self._mark, grace=grace)

    async def _read(self) -> Any:
        try:
            header = await self._reader.readexactly(HEADER.size)
            payload = await self._reader.readexactly(*HEADER.unpack(header))
        except OSError as error:
            raise EOFError from error
        return pickle.loads(payload)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        code = self._process.wait()
        self._revoke()

        def note() -> None:
            if not self.exited.done():
                self.exited.set_result(code)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(note)


def _created(pid: int) -> float | None:
    """Return when a process was created; None where it has ended."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def _retrieve(reading: asyncio.Task[Any]) -> None:
    """Nobody may ask for its last result, which is that the stream has ended."""
    if not reading.cancelled():
        reading.exception()


def describe_exit(code: int) -> str:
    """Say an exit code in words: `exited with code 3`, `was killed by SIGSEGV`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (perhaps the system ran out of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
