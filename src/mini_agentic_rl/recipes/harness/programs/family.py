"""Find, measure and kill the descendants of the calling process, by /proc or else by `ps`.

On Linux the caller is their subreaper: orphans of its children become its children, so no descendant can escape by
another session or process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

_SET_CHILD_SUBREAPER: Final = 36
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PF_EXITING: Final = 0x4
_LINUX: Final = sys.platform == "linux"
_PIPE: Final = 64 << 10
_SOCKET: Final = 416 << 10
"""Bytes of a pipe, and of the queue of a socket, at most."""
_DESCRIPTOR: Final = 16 << 10
_MAPPING: Final = 1 << 10
"""Bytes that a descriptor and a mapping count. The kernel takes less, but measuring many would take long."""
_OF_MEMORY: Final = ("RssAnon:", "VmSwap:", "VmPTE:")


@dataclass
class Usage:
    """Resources of several processes together."""

    processes: int = 0
    """Processes and their threads."""
    memory: int = 0
    """Bytes of anonymous memory, page tables, descriptors, mappings, and the capacity of pipes and sockets."""
    cpu_seconds: float = 0.0
    unlinked: int = 0
    """Bytes of deleted files that are still open."""
    hidden: bool = False
    """True if something cannot be measured: files of a process that cannot be read, what threads hold whose first
    thread has ended, or descriptors that were sent to a socket and not received."""


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants (on Linux only)."""
    if _LINUX:
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Return the process ids of all running descendants, the nearest first."""
    processes: list[int] = []
    has_children_files = _LINUX and os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    parents = None if has_children_files else _parents()
    waiting = [os.getpid()]
    while waiting:
        parent = waiting.pop(0)
        below = _children(parent) if parents is None else [pid for pid, above in parents.items() if above == parent]
        fresh = [pid for pid in below if pid not in processes]
        processes += fresh
        waiting += fresh
    return processes


def usage(processes: list[int]) -> Usage:
    """Return the usage of processes; ended ones count nothing."""
    total = Usage()
    held: dict[int, int] = {}
    unlinked: dict[int, int] = {}
    for pid in processes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = _stat(pid)
            with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
                sizes = dict(line.split(None, 1) for line in file if line.startswith(_OF_MEMORY))
            total.processes += int(fields[17])
            total.cpu_seconds += sum(map(int, fields[11:15])) / _TICKS
            total.memory += sum(int(size.split()[0]) << 10 for size in sizes.values())
            try:
                total.memory += _MAPPING * _mapped(pid, unlinked)
                descriptors, is_sent = _opened(pid, held, unlinked)
                total.memory += _DESCRIPTOR * descriptors
                total.hidden |= is_sent or (fields[0] == "Z" and not _is_ending(pid))
            except PermissionError:
                total.hidden |= not _is_ending(pid)
    total.memory += sum(held.values())
    total.unlinked = sum(unlinked.values())
    return total


def _mapped(pid: int, unlinked: dict[int, int]) -> int:
    """Add the mapped deleted files of a process; return the number of its mappings."""
    count = 0
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            count += 1
            if line.endswith(" (deleted)\n"):
                where, _, offset, _, inode, _ = line.split(None, 5)
                first, _, last = where.partition("-")
                size = int(offset, 16) + int(last, 16) - int(first, 16)
                unlinked[int(inode)] = max(size, unlinked.get(int(inode), 0))
    return count


def _opened(pid: int, held: dict[int, int], unlinked: dict[int, int]) -> tuple[int, bool]:
    """Add the open pipes, sockets and deleted files of a process; return the number of its descriptors, and whether
    others were sent to a socket of it and not received."""
    names, is_sent = os.listdir(f"/proc/{pid}/fd"), False
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            opened = os.stat(f"/proc/{pid}/fd/{name}")
            if stat.S_ISFIFO(opened.st_mode):
                held[opened.st_ino] = _PIPE
            elif stat.S_ISSOCK(opened.st_mode):
                held[opened.st_ino] = _SOCKET
                with open(f"/proc/{pid}/fdinfo/{name}", encoding="utf-8") as file:
                    is_sent |= any(line.startswith("scm_fds:") and int(line.split()[1]) > 0 for line in file)
            elif stat.S_ISREG(opened.st_mode) and opened.st_nlink == 0:
                unlinked[opened.st_ino] = opened.st_blocks * 512
    return len(names), is_sent


def kill_all(leader: int, seconds: float) -> bool:
    """Kill every descendant and the process group of `leader`; return False if one is left after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
        left = descendants()
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not (_has_children() or left):
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.005)


def _has_children() -> bool:
    """Reap ended children; return True if any is left. `descendants` misses one whose parent ends meanwhile."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return False
    return True


def reap() -> dict[int, tuple[int, float]]:
    """Reap ended children; return the wait status and processor time of each."""
    ended: dict[int, tuple[int, float]] = {}
    while True:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = (status, used.ru_utime + used.ru_stime)


def _children(parent: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                children += [pid for pid in map(int, file.read().split()) if not _is_zombie(pid)]
    return children


def _stat(pid: int | str) -> list[str]:
    """Return the fields of `/proc/PID/stat` from the state on."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _is_ending(pid: int) -> bool:
    """Return True if all threads of a process are about to end."""
    threads = os.listdir(f"/proc/{pid}/task")
    return all(int(_stat(f"{pid}/task/{thread}")[6]) & _PF_EXITING for thread in threads)


def _is_zombie(pid: int) -> bool:
    """Return True for an ended process; one with only its first thread ended is still running."""
    try:
        return _stat(pid)[0] in ("Z", "X") and len(os.listdir(f"/proc/{pid}/task")) < 2
    except (OSError, IndexError):
        return True


def _parents() -> dict[int, int]:
    """Return the parent of every running process of this computer."""
    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as ps:
        assert ps.stdout is not None
        rows = [line.split() for line in ps.stdout]
    parents = {int(row[0]): int(row[1]) for row in rows if len(row) > 2 and not row[2].startswith("Z")}
    parents.pop(ps.pid, None)
    return parents
