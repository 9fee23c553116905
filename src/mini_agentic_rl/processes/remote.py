"""A function of this package in a new process: its argument, a stop message, and its failure.

A child is a new interpreter with its own session, not a fork, and does not import the parent's main module. On its
standard input it receives the pickled argument, then a byte when it has to stop. The end of the input means that the
parent has ended; the child then ends itself and everything that it has started. `at_death` covers a child that cannot
do so. The child is not killed at once when its parent dies: it needs time to clean up. A failure goes to a file.

User code is pickled by cloudpickle (`dumps`), which sends functions and classes of a script by value.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import io
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType
from typing import Any, BinaryIO, ClassVar, Final

import cloudpickle
import psutil

from ..errors import UserError
from ..logging import PACKAGE_LOGGER, setup_logging
from .children import FAMILY_VARIABLE, at_death, creation_time, end_family, end_orphans, new_family
from .threads import in_daemon_thread


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


class Parent:
    """The process that started this one."""

    def __init__(self, stream: BinaryIO, mark: str, failure_path: str, orphan_seconds: float) -> None:
        self._stream = stream
        self._mark = mark
        self._failure_path = Path(failure_path)
        self._orphan_seconds = orphan_seconds

    def listen(self, stop: Callable[[], None]) -> None:
        """Call `stop`, from a thread, when the parent sends the stop message, and when it has ended."""

        def read() -> None:
            while self._stream.read(1):
                stop()
            stop()
            self._end_later()

        threading.Thread(target=read, name="listener", daemon=True).start()

    def report(self, error: BaseException) -> None:
        """Report a failure, which the parent raises; this process then has to end."""
        self._failure_path.write_text(json.dumps(asdict(RemoteFailure.of(error))), encoding="utf-8")
        threading.Thread(target=self._end_later, name="end", daemon=True).start()

    def end_others(self) -> None:
        """Kill the descendants of this process."""
        end_family(os.getpid(), self._mark)

    def _end_later(self) -> None:
        """Kill this process and its descendants, unless it ends by itself within `orphan_seconds`."""
        time.sleep(self._orphan_seconds)
        self.end_others()
        psutil.Process().kill()


def enter(stream: BinaryIO, entry: str, argument: bytes, log_level: int | None, **of_parent: Any) -> None:
    """Run `entry`, written `module:function`, with the parent's log level; the first call in a new process."""
    if log_level is not None:
        setup_logging(log_level, color=sys.stderr.isatty())
    module, _, name = entry.partition(":")
    function = getattr(importlib.import_module(module), name)
    function(pickle.loads(argument), Parent(stream, **of_parent))


_BOOTSTRAP: Final = """
import os, pickle, sys
stream = os.fdopen(os.dup(0), "rb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
try:
    sys.path[:], sys.argv[:], module, options = pickle.load(stream)
except (EOFError, pickle.UnpicklingError):
    sys.exit()  # the parent has ended
__import__(module)
sys.modules[module].enter(stream, **options)
"""
_ORPHAN_MARGIN: Final = 1.0
"""Seconds beyond those that a process takes to end itself, until it is ended from outside."""


class Child:
    """A new process that calls `entry` (`module:function`) with the argument and its `Parent`.

    Belongs to the running event loop, except `end`.

    Args:
        name: of the process, in log lines and in the list of processes.
        entry: function of this package.
        argument: an object that `pickle` can send.
        orphan_seconds: seconds that the process may take to end itself and its descendants once this one has ended.
    """

    def __init__(self, name: str, entry: str, argument: Any, orphan_seconds: float) -> None:
        logger = logging.getLogger(PACKAGE_LOGGER)
        self.name = name
        self._mark = new_family()
        pickled = pickle.dumps(argument)  # before the file: it may fail
        handle, failure_path = tempfile.mkstemp(prefix="mini-agentic-rl-")
        os.close(handle)
        self._failure_path = Path(failure_path)
        options = {
            "entry": entry,
            "argument": pickled,
            "log_level": logger.level if logger.handlers else None,
            "mark": self._mark,
            "failure_path": failure_path,
            "orphan_seconds": orphan_seconds,
        }
        try:
            # Not asyncio's subprocesses: Windows has none on its selector event loop.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, name],
                stdin=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, FAMILY_VARIABLE: self._mark},
            )
        except BaseException:
            self._failure_path.unlink()
            raise
        pid = self._process.pid
        self.ended: asyncio.Future[int] = in_daemon_thread(self._process.wait, f"{name}-end")
        """Exit code, once the process has ended; minus the number of the signal that ended it. Not to be cancelled."""
        self._revokes = (
            at_death(end_orphans, pid, creation_time(pid), self._mark, orphan_seconds + _ORPHAN_MARGIN),
            at_death(os.unlink, failure_path),  # after the process, which may still report
        )
        first = pickle.dumps((sys.path, sys.argv, __name__, options))
        self._sent = in_daemon_thread(lambda: self._write(first), f"{name}-start")  # it waits for a slow reader

    def stop(self) -> None:
        """Send the stop message."""
        self._sent.add_done_callback(lambda _: self._write(b"\n"))

    def interrupt(self) -> None:
        """Send SIGINT to the process alone; nothing on Windows, which cannot."""
        if os.name == "posix":
            self._process.send_signal(signal.SIGINT)

    def end(self, grace: float) -> None:
        """End the process and its descendants: SIGTERM, and SIGKILL after `grace` seconds. Blocks; for any thread.

        If the process has ended, the descendants that it left behind are ended.
        """
        end_family(self._process.pid, self._mark, grace)

    def close(self) -> Exception | None:
        """Forget the process, which has ended; return the failure that it reported."""
        for revoke in self._revokes:
            revoke()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # what the process has not read
            self._process.stdin.close()
        try:
            report = self._failure_path.read_text(encoding="utf-8")
            self._failure_path.unlink()
            return RemoteFailure(**json.loads(report)).as_exception()
        except (OSError, ValueError):  # no report, or it was killed while it wrote, or the system removed an old file
            return None

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the process has ended, and the pipe may be closed
            self._process.stdin.write(data)
            self._process.stdin.flush()


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


_MAX_DEPTH: Final = 12
"""Levels of nested parts that are searched for the one that cannot be pickled."""

_reduce_code: Callable[[CodeType], Sequence[Any]] = cloudpickle.Pickler.dispatch_table[CodeType]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's pickler, but functions sent by value keep their file name.

    cloudpickle drops it from 3.1.3 on; a traceback of the other process would then show no line of the user's code.
    """

    dispatch_table: ClassVar[Mapping[type, Callable[[Any], Any]]] = ChainMap(
        {CodeType: lambda code: (_code_of_file, (code.co_filename, *_reduce_code(code)[:2]))},
        cloudpickle.Pickler.dispatch_table,
    )


def _code_of_file(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


def _to_bytes(value: Any) -> bytes:
    """Pickle `value`; raises an exception of any kind if it cannot be pickled."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def dumps(value: Any, name: str, advice: str) -> bytes:
    """Pickle `value`.

    Args:
        value: any object.
        name: what the error calls it.
        advice: last sentence of the error.

    Raises:
        UserError: some part of it cannot be pickled; the message names the part.
    """
    try:
        return _to_bytes(value)
    except Exception as error:
        path, part = _culprit(value, name, {id(value)})
        raise UserError(
            f"{path} ({type(part).__module__}.{type(part).__qualname__}) cannot be sent to another process: {error}. "
            f"{advice}"
        ) from error


def _culprit(value: Any, path: str, seen: set[int]) -> tuple[str, Any]:
    """Return the path of the innermost part that cannot be pickled, and the part."""
    for _ in range(_MAX_DEPTH):
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
        _to_bytes(value)
    except Exception:  # pickling runs the code of whatever is pickled, which may raise anything
        return False
    return True
