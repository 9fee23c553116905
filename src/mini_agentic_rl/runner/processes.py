"""Child processes of this package: start, messages, pickling, and the end of a process with everything that it started.

A child is a new interpreter with its own session, not a fork, and does not import the parent's main module. Parent
(`Child`) and child (`Channel`) exchange messages over a socket: a pickle behind its length in 8 bytes, big-endian. The
end of the stream means that the other side is gone; a child then ends itself and what it has started. `at_death` covers
a child that cannot do so. No signal is tied to the parent's death, because it would leave no time to clean up.

A process and its descendants form a family. A member descends from the first process, or is in its process group, or
carries the family's mark in its environment. The mark survives a dead parent and a changed group. Marks are paths: the
mark of a family that a member starts begins with the member's own mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import io
import logging
import os
import pickle
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, BinaryIO, ClassVar, Final

import cloudpickle
import psutil

from ..errors import UserError
from ..logging import PACKAGE_LOGGER, setup_logging
from ..processes import at_death

_DEPTH = 12


_reduce_code: Callable[[CodeType], Sequence[Any]] = cloudpickle.Pickler.dispatch_table[CodeType]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler like cloudpickle, which keeps the file of functions that travel by value too: without it, as cloudpickle
    does from 3.1.3 on, a traceback from the other process shows no line of the user's code."""

    dispatch_table: ClassVar[Mapping[type, Callable[[Any], Any]]] = ChainMap(
        {CodeType: lambda code: (_code_of_file, (code.co_filename, *_reduce_code(code)[:2]))},
        cloudpickle.Pickler.dispatch_table,
    )


def _code_of_file(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


def to_bytes(value: Any) -> bytes:
    """Pickle `value`.

    Raises:
        Exception: of any kind, if it cannot be pickled.
    """
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def dumps(value: Any, name: str, advice: str) -> bytes:
    """Pickle `value`, which the error calls `name`.

    Raises:
        UserError: some part of it cannot be pickled; the message names the part and gives the `advice`.
    """
    try:
        return to_bytes(value)
    except Exception as error:
        path, part = _culprit(value, name, {id(value)})
        raise UserError(
            f"{path} ({type(part).__module__}.{type(part).__qualname__}) cannot be sent to another process: {error}. "
            f"{advice}"
        ) from error


def _culprit(value: Any, path: str, seen: set[int]) -> tuple[str, Any]:
    """Return the innermost part that cannot be pickled, and the way to it."""
    for _ in range(_DEPTH):
        for step, part in _parts(value):
            if id(part) not in seen and not _is_picklable(part):
                seen.add(id(part))
                value, path = part, path + step
                break
        else:
            break
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif inspect.isfunction(value):
        names = inspect.getclosurevars(value)
        for word, variables in (("global", names.globals), ("outer variable", names.nonlocals)):
            yield from ((f" → {word} {name!r}", part) for name, part in variables.items())
        yield from ((" → a default", part) for part in value.__defaults__ or ())
    elif inspect.ismethod(value):
        yield " → its object", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((" → an argument", part) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, type):
        yield from ((f".{name}", part) for name, part in vars(value).items())
    else:
        state = getattr(value, "__dict__", {})
        yield from ((f".{name}", part) for name, part in state.items())
        yield f" → {type(value).__name__}", type(value)


def _is_picklable(value: Any) -> bool:
    try:
        to_bytes(value)
    except Exception:  # pickling runs the code of whatever is pickled, which may raise anything
        return False
    return True


FAMILY_VARIABLE = "MINI_AGENTIC_RL_FAMILY"
"""Environment variable that holds the mark of a family."""

_CHECK_SECONDS = 0.01
_KILL_SECONDS = 5.0


def new_family() -> str:
    """Return a mark for a family that this process is about to start."""
    return f"{os.environ.get(FAMILY_VARIABLE, '')}/{secrets.token_hex(8)}"


def begin_family() -> str:
    """Return the mark of all that this process starts from now on; what is left when it ends, however, is killed."""
    mark = os.environ[FAMILY_VARIABLE] = new_family()
    at_death(__name__, "end_marked", mark)
    return mark


def find_family(pid: int, mark: str) -> list[psutil.Process]:
    """Return the members that run, whether or not the first process `pid` does; never the calling process."""
    descendants: set[int] = set()
    with contextlib.suppress(psutil.Error):
        descendants = {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if process.pid != os.getpid()
        and process.info["status"] != psutil.STATUS_ZOMBIE
        and (
            process.pid == pid
            or process.pid in descendants
            or _group(process.pid) == pid
            or _is_below((process.info["environ"] or {}).get(FAMILY_VARIABLE, ""), mark)
        )
    ]


def end_family(pid: int, mark: str, *, grace: float) -> None:
    """SIGTERM to every member, `grace` seconds to end, SIGKILL to those that are left. Blocks until all have ended.

    With a grace of 0 it begins with SIGKILL.
    """
    if grace > 0:
        members = find_family(pid, mark)
        _signal(members, signal.SIGTERM)
        _wait(members, grace)
    end = time.monotonic() + _KILL_SECONDS
    while (members := find_family(pid, mark)) and time.monotonic() < end:
        _signal(members, signal.SIGKILL)
        _wait(members, _KILL_SECONDS)


def end_orphans(pid: int, create_time: float | None, mark: str, seconds: float) -> None:
    """Kill a family whose starter is gone, if its first process still runs `seconds` from now.

    Its number may be another's by then, so it counts only with the time at which it was created.
    """
    with contextlib.suppress(psutil.Error):
        first = psutil.Process(pid)
        if first.create_time() == create_time:
            _wait([first], seconds)
            if _runs(first):
                end_family(pid, mark, grace=0)


def end_marked(mark: str) -> None:
    """Kill the members of a family whose first process has ended, as far as they carry its mark."""
    end_family(0, mark, grace=0)


def _is_below(mark: str, ancestor: str) -> bool:
    return mark == ancestor or mark.startswith(f"{ancestor}/")


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:  # it has ended
        return None


def _signal(members: list[psutil.Process], number: int) -> None:
    for process in members:
        with contextlib.suppress(psutil.Error):  # it has ended
            process.send_signal(number)


def _wait(members: list[psutil.Process], seconds: float) -> None:
    """Wait without reaping: the exit code of a child belongs to whoever started it."""
    end = time.monotonic() + seconds
    while any(_runs(process) for process in members) and time.monotonic() < end:
        time.sleep(_CHECK_SECONDS)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


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
            __name__,
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
        setup = pickle.dumps((sys.path, sys.argv, __name__, options))
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
