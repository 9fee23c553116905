"""Run one command within limits, end all of its processes, and report as one line of JSON.

Standard input gives one line of JSON: `argv`, `cwd`, `env`, `limits`, `files` (see `confine`), `folders` (whose size is
limited), `after` (a clean-up command) and `parent`. When standard input is closed, the caller has ended, and the
command and this program end, too.

The report has `status` (an exit code, or minus the number of a signal), `ended_by` (the limit that was reached,
`caller` if the caller has ended, or None), `stdout`, `stderr`, `seconds`, `cpu_seconds`, `memory` (the peak),
`left_behind` (processes that were still running at the end of the command) and `alive` (processes that could not be
killed); or it has `error`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import selectors
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from . import family
from .confine import confine, user_without_rights

_BLOCK: Final = 512
_LEAST: Final = 4096
"""Bytes that a file or a folder counts at least, so that the number of empty ones is limited, too."""
DEPTH: Final = 200
"""Nesting of folders at which the disk limit counts as reached."""
_OPEN: Final = stat.S_IRUSR | stat.S_IXUSR
_FIRST_SECONDS: Final = 0.2
_SIZE_SHARE: Final = 20
"""Pause until the next measurement, as a multiple of its duration."""


class FolderSize:
    """The bytes of folders on disk. They are measured as often as that is cheap, and also when the free space of the
    disk has fallen by so much that `limit` may be reached: measuring many small files takes long, so it is rare."""

    def __init__(self, folders: Sequence[str], limit: float) -> None:
        self._folders = folders
        self._limit = limit
        self._first = os.open(folders[0], os.O_RDONLY)
        self._size = self._free = self._next = 0.0

    def measure(self, *, now: bool = False) -> float:
        """Return the size at the last measurement, or with `now` the current size."""
        begun, disk = time.monotonic(), os.fstatvfs(self._first)
        free = disk.f_bfree * disk.f_frsize
        if now or begun >= self._next or self._size + self._free - free > self._limit:
            self._free = free
            self._size = sum(map(_size, self._folders))
            done = time.monotonic()
            self._next = done + max(_FIRST_SECONDS, _SIZE_SHARE * (done - begun))
        return self._size


def _size(folder: str) -> float:
    """Return the bytes of a folder; infinite if it is nested deeper than `DEPTH`."""
    total = 0
    if not os.path.isdir(folder):
        return total
    for place, below, names, opened in os.fwalk(folder):
        if place.count(os.sep) - folder.count(os.sep) > DEPTH:
            return math.inf
        for name in (*below, *names):
            with contextlib.suppress(OSError):  # removed meanwhile
                entry_stat = os.stat(name, dir_fd=opened, follow_symlinks=False)
                total += max(_LEAST, entry_stat.st_size, entry_stat.st_blocks * _BLOCK)  # a copy has no holes
                if stat.S_ISDIR(entry_stat.st_mode) and entry_stat.st_mode & _OPEN != _OPEN:
                    _open(name, opened, stat.S_IMODE(entry_stat.st_mode) | _OPEN)
    return total


def _open(name: str, above: int, mode: int) -> None:
    """Make a folder readable for its owner, without following a link in its place."""
    if sys.platform == "linux":
        folder = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=above)
        try:
            os.chmod(f"/proc/self/fd/{folder}", mode)
        finally:
            os.close(folder)


_FLOOD: Final = 16 << 20
_BREATH_SECONDS: Final = 0.002


class KeptOutput:
    """The beginning and the end of a pipe's output, and the number of bytes between them."""

    def __init__(self, descriptor: int, limit: int) -> None:
        """`descriptor` is that of a non-blocking pipe; `limit` is in bytes."""
        self.descriptor = descriptor
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._in_tail = 0
        self._total = 0

    def read(self) -> bool:
        """Read available data; return False at the end of the pipe."""
        try:
            data = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._total += len(data)
        if self._total > _FLOOD:  # slow down a command that floods the pipe
            time.sleep(_BREATH_SECONDS)
        room = self._half - len(self._head)
        self._head += data[:room]
        rest = data[max(0, room) :]
        if rest:
            self._tail.append(rest)
            self._in_tail += len(rest)
            while self._in_tail - len(self._tail[0]) >= self._half:
                self._in_tail -= len(self._tail.popleft())
        return bool(data)

    def drain(self) -> None:
        """Read the rest of the pipe without waiting for more."""
        before = -1
        while before != self._total and self.read():
            before = self._total

    def text(self) -> str:
        """Return the output, with a line for the bytes that were left out."""
        tail = b"".join(self._tail)[-self._half :]
        left_out = self._total - len(self._head) - len(tail)
        between = f"\n[... {left_out} bytes are left out ...]\n".encode() if left_out else b""
        return (bytes(self._head) + between + tail).decode("utf-8", "replace")


_LOOK_SECONDS: Final = 0.05
_SHARE: Final = 5
"""Pause until the next check, as a multiple of the duration of a check."""
_LONGEST_SECONDS: Final = 0.5
"""Longest pause: a command may make checks long, and must not gain time by that."""
_HIDING_SECONDS: Final = 1.0
_BLOCKED_SECONDS: Final = 5.0
"""Time for which something may be hidden, and for which /proc may not answer, as for a process that forks without end;
then it counts as beyond the memory limit."""
_KILL_SECONDS: Final = 10.0
_AFTER_SECONDS: Final = 30.0


class Supervised:
    """A running command and its state."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._limits: dict[str, Any] = task["limits"]
        self._begun = time.monotonic()
        self._reaped_cpu = 0.0
        self._memory = 0
        self._shown = self._begun
        self._error: OSError | None = None
        self._measured_since = math.inf
        self._status: int | None = None
        self.ended_by: str | None = None
        self._sizes = FolderSize(task["folders"], self._limits["disk"])
        files = task["files"]
        user = None if files is None else user_without_rights(files["readable"])
        if user and user[0]:
            _give(task["folders"], user[0])
        self._process = subprocess.Popen(
            task["argv"],
            cwd=task["cwd"],
            env=task["env"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: confine(task["rlimits"], files, user),
        )
        with contextlib.suppress(OSError):  # only root may: against many busy processes it would hardly ever run
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        pipes = (self._process.stdout, self._process.stderr)
        self._outputs = [KeptOutput(pipe.fileno(), self._limits["output"]) for pipe in pipes if pipe is not None]
        for output in self._outputs:
            os.set_blocking(output.descriptor, False)

    def run(self) -> dict[str, Any]:
        """Watch the command until it ends or reaches a limit; return the report."""
        watch = threading.Thread(target=self._watch)
        watch.start()
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
            for output in self._outputs:
                selector.register(output.descriptor, selectors.EVENT_READ, output)
            while self._status is None and self.ended_by is None and self._error is None:
                for key, _ in selector.select(_LOOK_SECONDS):
                    if key.data is None:
                        if not os.read(sys.stdin.fileno(), 1):
                            self.ended_by = "caller"
                    elif not key.data.read():
                        selector.unregister(key.fd)
                now = time.monotonic()
                if now - self._begun > self._limits["seconds"]:
                    self.ended_by = "seconds"
                elif now - self._measured_since > _BLOCKED_SECONDS and "memory" in self._limits:
                    self.ended_by = "memory"
                if os.getppid() != self._task["parent"]:
                    self.ended_by = "caller"
        left = [pid for pid in family.descendants() if pid != self._process.pid]
        alive = not family.kill_all(self._process.pid, _KILL_SECONDS)
        watch.join()
        if self._error is not None:
            raise self._error
        for output in self._outputs:
            output.drain()
        if self.ended_by is None and self._sizes.measure(now=True) > self._limits["disk"]:
            self.ended_by = "disk"
        self._after()
        return {
            "status": self._status,
            "ended_by": self.ended_by,
            "stdout": self._outputs[0].text(),
            "stderr": self._outputs[1].text(),
            "seconds": time.monotonic() - self._begun,
            "cpu_seconds": self._reaped_cpu,
            "memory": self._memory,
            "left_behind": 0 if self.ended_by else len(left),
            "alive": alive,
        }

    def _watch(self) -> None:
        """Look again and again, in a thread: the kernel may let a reader of /proc wait for the command."""
        try:
            while self._status is None and self.ended_by is None:
                begun = time.monotonic()
                self._look()
                time.sleep(min(max(_LOOK_SECONDS, _SHARE * (time.monotonic() - begun)), _LONGEST_SECONDS))
        except OSError as error:
            self._error = error

    def _look(self) -> None:
        """Reap ended processes, and compare the usage with the limits."""
        for pid, (status, cpu) in family.reap().items():
            self._reaped_cpu += cpu
            if pid == self._process.pid:
                self._status = os.waitstatus_to_exitcode(status)
                self._process.returncode = self._status
        self._measured_since = time.monotonic()
        taken = family.usage(family.descendants())
        self._measured_since = math.inf
        self._memory = max(self._memory, taken.memory)
        now = time.monotonic()
        if not taken.hidden:
            self._shown = now
        used = {
            "cpu_seconds": self._reaped_cpu + taken.cpu_seconds,
            "memory": math.inf if taken.hidden and now - self._shown > _HIDING_SECONDS else taken.memory,
            "processes": taken.processes,
            "disk": self._sizes.measure() + taken.unlinked,
        }
        for name, value in used.items():
            if name in self._limits and value > self._limits[name] and self.ended_by is None:
                self.ended_by = name

    def _after(self) -> None:
        if self._task["after"]:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # the report says how the command ended
                subprocess.run(
                    self._task["after"],
                    env=self._task["env"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_AFTER_SECONDS,
                    check=False,
                )


def _give(folders: Sequence[str], user: int) -> None:
    """Make a user the owner of folders and of their parent, the rollout's folder."""
    for above in {os.path.dirname(folder) for folder in folders}:
        os.chown(above, user, user)
    for folder in folders:
        for place, below, names in os.walk(folder):
            for name in (".", *below, *names):
                os.chown(os.path.join(place, name), user, user, follow_symlinks=False)


def main() -> None:
    """Run the command of standard input and print the report."""
    task = json.loads(_first_line())
    family.adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        report = Supervised(task).run()
    except (OSError, subprocess.SubprocessError) as error:
        report = {"error": f"{task['argv'][0]}: {getattr(error, 'strerror', None) or error}"}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def _first_line() -> bytes:
    """Return the first line of standard input, which is all of it until the caller ends."""
    line = bytearray()
    while not line.endswith(b"\n"):
        more = os.read(sys.stdin.fileno(), 1 << 16)
        if not more:
            sys.exit(1)
        line += more
    return bytes(line)
