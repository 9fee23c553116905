"""The descendants of the calling process: found, measured and killed, by the files of /proc or else by `ps`.

On Linux the caller is their subreaper: what its children leave behind becomes its own, so that nothing that they start
is ever out of sight, whatever session or group it puts itself into.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

_SET_CHILD_SUBREAPER: Final = 36
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LINUX: Final = sys.platform == "linux"


@dataclass
class Usage:
    """Resources that processes take together."""

    processes: int = 0
    """Processes and their threads."""
    memory: int = 0
    """Bytes that are no file's."""
    cpu_seconds: float = 0.0


def adopt_orphans() -> None:
    """Become the parent of whatever descendants leave behind; on Linux alone."""
    if _LINUX:
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Return the process ids of all descendants that have not ended, the nearest first."""
    found: list[int] = []
    parents = _parents() if not _has_children_files() else None
    waiting = [os.getpid()]
    while waiting:
        parent = waiting.pop(0)
        below = _children(parent) if parents is None else [pid for pid, above in parents.items() if above == parent]
        fresh = [pid for pid in below if pid not in found]
        found += fresh
        waiting += fresh
    return found


def usage(processes: list[int]) -> Usage:
    """Return what these take; those that have ended meanwhile take nothing."""
    total = Usage()
    for pid in processes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
                pages = file.read().split()
            total.processes += int(fields[17])
            total.cpu_seconds += sum(map(int, fields[11:15])) / _TICKS
            total.memory += max(0, int(pages[1]) - int(pages[2])) * _PAGE
    return total


def kill_all(leader: int, seconds: float) -> bool:
    """Kill every descendant and the process group of `leader`; False if one is left after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
        left = descendants()
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap()
        if not left:
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.005)


def reap() -> dict[int, tuple[int, float]]:
    """Return the wait status and the processor time of each child that has ended since."""
    ended: dict[int, tuple[int, float]] = {}
    while True:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = (status, used.ru_utime + used.ru_stime)


def _has_children_files() -> bool:
    return _LINUX and os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


def _children(parent: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                found += [pid for pid in map(int, file.read().split()) if not _is_zombie(pid)]
    return found


def _is_zombie(pid: int) -> bool:
    """Return True for a process that has ended; one whose first thread alone has ended still runs."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ended = file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
        return ended and len(os.listdir(f"/proc/{pid}/task")) < 2
    except (OSError, IndexError):
        return True


def _parents() -> dict[int, int]:
    """Return the parent of every process of this computer that has not ended."""
    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as ps:
        assert ps.stdout is not None
        rows = [line.split() for line in ps.stdout]
    found = {int(row[0]): int(row[1]) for row in rows if len(row) > 2 and not row[2].startswith("Z")}
    found.pop(ps.pid, None)
    return found
