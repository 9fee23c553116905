"""Start processes that need not import the engine again: each is forked from one that has.

Importing torch, transformers and the package takes ten seconds of processor time, most of what a short script takes. A
process from here is as real as another: it has its own memory, files, signals and exit status, and can be killed.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from forking import NETWORK, SOCKET, start

__all__ = ["NETWORK", "WarmProcess", "run_warm", "warm_python"]

_lock = threading.Lock()
_started: str | None = None


class WarmProcess:
    """Run `python script options...`, begun at once; as a context manager it is killed when left early.

    Args:
        script: a file, or the name of a module, as after `python -m`.
        options: what follows it on the command line.
        environment: variables beside those of this process.
        held: its standard input ends when this object, or this process, does; otherwise it is empty.
    """

    def __init__(
        self, script: str | Path, *options: str, environment: Mapping[str, str] | None = None, held: bool = False
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.stdout_file = Path(self._folder.name) / "stdout"
        self.stderr_file = Path(self._folder.name) / "stderr"
        stdin = os.devnull
        self._hold: int | None = None
        if held:
            stdin = str(Path(self._folder.name) / "stdin")
            os.mkfifo(stdin)
            self._hold = os.open(stdin, os.O_RDWR)  # for writing alone it would wait for the reader
        address = _address()
        asked = {
            "script": str(script),
            "options": options,
            "environment": {**os.environ, **(environment or {}), SOCKET: address},
            "folder": os.getcwd(),
            "path": sys.path,
            "stdin": stdin,
            "stdout": str(self.stdout_file),
            "stderr": str(self.stderr_file),
        }
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._socket.sendall(json.dumps(asked).encode() + b"\n")
        self._told = self._socket.makefile("rb", buffering=0)
        self._status: int | None = None
        self.pid = self._number()

    @property
    def is_alive(self) -> bool:
        return not self._ended(0.0)

    def send_signal(self, number: int) -> None:
        if self.is_alive:
            os.kill(self.pid, number)

    def _ended(self, timeout: float) -> bool:
        """Return whether it has ended, or does so within so many seconds."""
        if self._status is None and select.select([self._socket], [], [], timeout)[0]:
            self._status = self._number()
        return self._status is not None

    def _number(self) -> int:
        line = self._told.readline()
        assert line, "the process that forks has ended"
        return int(line)

    def wait_for(self, beginning: str) -> None:
        """Wait until a line on standard error begins so.

        Raises:
            AssertionError: the process ended, or two minutes passed, without one.
        """
        self._wait_until(lambda: any(line.startswith(beginning) for line in self.stderr.splitlines()))

    def wait_for_word(self, beginning: str) -> str:
        """Wait for a whole word on standard error that begins so, and return the first one.

        Raises:
            AssertionError: the process ended, or two minutes passed, without one.
        """
        word = re.compile(re.escape(beginning) + r"\S+(?=\s)")
        self._wait_until(lambda: word.search(self.stderr) is not None)
        return word.findall(self.stderr)[0]

    def wait_for_line(self) -> str:
        """Wait for the first whole line on standard output, and return it.

        Raises:
            AssertionError: the process ended, or two minutes passed, without one.
        """
        self._wait_until(lambda: "\n" in self.stdout)
        return self.stdout.partition("\n")[0]

    def _wait_until(self, told: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not told():
            assert self.is_alive, self.stderr[-3000:]
            assert time.monotonic() < end, self.stderr[-3000:]
            time.sleep(0.01)

    def wait(self, timeout: float = 270.0) -> int:
        """Wait for its end and return its exit status, below 0 for the signal that ended it.

        Raises:
            AssertionError: it runs for more than `timeout` seconds; it is killed.
        """
        if not self._ended(timeout):
            self._kill()
            raise AssertionError(f"still running after {timeout} s:\n{self.stderr[-3000:]}")
        assert self._status is not None
        return self._status

    def _kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        assert self._ended(60.0), "a killed process has not ended"

    @property
    def stdout(self) -> str:
        return self.stdout_file.read_text() if self.stdout_file.exists() else ""

    @property
    def stderr(self) -> str:
        return self.stderr_file.read_text() if self.stderr_file.exists() else ""

    def __enter__(self) -> WarmProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        self._told.close()
        self._socket.close()
        if self._hold is not None:
            os.close(self._hold)
        self._folder.cleanup()


def run_warm(
    script: str | Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    expect: int = 0,
    timeout: float = 270.0,
) -> tuple[str, str]:
    """Run `python script options...`, which ends with the status `expect`; return its standard output and error."""
    with WarmProcess(script, *options, environment=environment) as process:
        status = process.wait(timeout)
        assert status == expect, f"status {status}:\n{process.stderr[-3000:]}"
        return process.stdout, process.stderr


def warm_python(*words: str) -> list[str]:
    """Return the command that runs `python words...`, begun by `-c`, `-m` or a script, as a fork that need not import.

    It is for `subprocess`: the fork has the files of the process that is started, gets its SIGINT and SIGTERM, is
    killed with it, and gives it its status. Only its process id is another one.
    """
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("forked_python.py")), "--for", _address(), *words]


def _address() -> str:
    """Return the socket of the process that forks: the one that xdist's workers come from, else one that is started."""
    global _started
    with _lock:
        if _started is None:
            _started = os.environ.get(SOCKET) or start()
        return _started
