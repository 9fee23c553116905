"""A disk that fails at a chosen operation, for processes that are started below a library of ours.

`failing_writes.c` stands between a process and libc (LD_PRELOAD, of Linux). `Preloaded` starts processes below it;
within one of them `failing` makes an operation on the files of a folder fail.

As a program it starts the processes that `Preloaded` asks for, one after another: their fork server has to run below
the library too.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import PythonProcess

SOURCE = Path(__file__).with_suffix("").with_name("failing_writes.c")
NAMES = {errno.ENOSPC: "ENOSPC", errno.EIO: "EIO"}
FAULTS = tuple(itertools.product(NAMES, (False, True)))
"""Error numbers, and whether the disk stays broken."""


def missing() -> str | None:
    """Return why no disk can be made to fail here; None where one can."""
    if sys.platform != "linux":
        return "LD_PRELOAD is of Linux"
    return None if shutil.which("cc") else "a library has to be compiled, and there is no C compiler (cc)"


@dataclass
class Done:
    """What came of a process; without a status it was killed because it took too long."""

    status: int | None
    stdout: str
    stderr: str


class Preloaded:
    """Start processes below the library, which is compiled into `folder`."""

    def __init__(self, folder: Path) -> None:
        library = folder / "failing_writes.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
        environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._starter = subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: Path, *options: str, timeout: float = 150.0) -> Done:
        """Run `python script options...` to its end, or kill it after `timeout` seconds."""
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        self._starter.stdin.write(json.dumps([str(script), options, timeout]) + "\n")
        self._starter.stdin.flush()
        return Done(**json.loads(self._starter.stdout.readline()))

    def close(self) -> None:
        """End the program that starts the others."""
        assert self._starter.stdin is not None
        self._starter.stdin.close()
        self._starter.wait(30)


class Operations:
    """The operations on a folder since its disk was told to fail."""

    def __init__(self) -> None:
        self.library: Any = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self.library.disk_operations.restype = ctypes.c_long

    @property
    def count(self) -> int:
        """How many there were so far."""
        return int(self.library.disk_operations())


@contextmanager
def failing(folder: Path, at: int, number: int, *, stays: bool) -> Iterator[Operations]:
    """Let the disk below a folder fail inside: at the operation `at`, from 1; at 0 never.

    Args:
        number: the error number.
        stays: True if all later operations fail as well.
    """
    operations = Operations()
    library = operations.library
    library.disk_fails(os.fsencode(os.path.realpath(folder)), ctypes.c_long(at), number, int(stays))
    try:
        yield operations
    finally:
        library.disk_works()


def told(what: str, attempt: Callable[..., bool], *arguments: Any, **options: Any) -> bool:
    """Print how a try went, as [what was tried, why it did not hold or null, seconds]; return what it returned.

    A try that does not hold returns True: there may be more operations.
    """
    began = time.monotonic()
    there, cause = True, None
    try:
        there = attempt(*arguments, **options)
    except Exception:
        cause = traceback.format_exc(limit=-4)
    print(json.dumps([what, cause, time.monotonic() - began]), flush=True)
    return there


def _serve() -> None:
    for line in sys.stdin:
        script, options, timeout = json.loads(line)
        with PythonProcess(script, *options) as process:
            status: int | None
            try:
                status = process.wait(timeout)
            except AssertionError:
                status = None
            done = {"status": status, "stdout": process.stdout, "stderr": process.stderr}
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    _serve()
