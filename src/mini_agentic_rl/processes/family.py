"""Families of processes: a process with everything that it has started, ended as a whole.

A member of a family descends from its first process, or is in its process group, or has the family's mark in its
environment. The mark survives a dead parent and a changed group. Marks are paths: the mark of a family that a member
starts begins with the member's own mark.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from typing import Final

import psutil

from .children import at_death

FAMILY_VARIABLE: Final = "MINI_AGENTIC_RL_FAMILY"
"""Environment variable that holds the mark of a family."""

_CHECK_SECONDS: Final = 0.01
_KILL_SECONDS: Final = 5.0


def new_family() -> str:
    """Return a new mark, for `FAMILY_VARIABLE` in the environment of a process that is about to be started."""
    return f"{os.environ.get(FAMILY_VARIABLE, '')}/{secrets.token_hex(8)}"


def begin_family() -> str:
    """Return the mark of everything that this process starts from now on; it is killed when this process ends."""
    mark = os.environ[FAMILY_VARIABLE] = new_family()
    at_death(__name__, "end_marked", mark)
    return mark


def find_family(pid: int, mark: str) -> list[psutil.Process]:
    """Return the running members, without the calling process; the first process `pid` may have ended."""
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
            or f"{(process.info['environ'] or {}).get(FAMILY_VARIABLE)}/".startswith(f"{mark}/")
        )
    ]


def end_family(pid: int, mark: str, *, grace: float) -> None:
    """Terminate every member, kill those that are left after `grace` seconds, and wait until all have ended. Blocks.

    With a grace of 0 all are killed at once, as on Windows, which has no SIGTERM.
    """
    if grace > 0:
        members = find_family(pid, mark)
        for process in members:
            with contextlib.suppress(psutil.Error):  # it has ended
                process.terminate()
        _wait(members, grace)
    end = time.monotonic() + _KILL_SECONDS
    while (members := find_family(pid, mark)) and time.monotonic() < end:
        for process in members:
            with contextlib.suppress(psutil.Error):
                process.kill()
        _wait(members, _KILL_SECONDS)


def end_orphans(pid: int, created: float | None, mark: str, seconds: float) -> None:
    """Kill a family whose starter has died, if its first process still runs `seconds` from now.

    Args:
        pid: number of the first process.
        created: its creation time; the number may be that of another process by now.
        mark: mark of the family.
        seconds: time in which it may end by itself.
    """
    with contextlib.suppress(psutil.Error):
        first = psutil.Process(pid)
        if first.create_time() == created:
            _wait([first], seconds)
            if _runs(first):
                end_family(pid, mark, grace=0)


def end_marked(mark: str) -> None:
    """Kill the members of a family that carry its mark; its first process has ended."""
    end_family(0, mark, grace=0)


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid) if hasattr(os, "getpgid") else None
    except OSError:  # it has ended
        return None


def _wait(members: list[psutil.Process], seconds: float) -> None:
    """Wait without reaping, which would take the exit code of a child from its `Popen` object."""
    end = time.monotonic() + seconds
    while any(_runs(process) for process in members) and time.monotonic() < end:
        time.sleep(_CHECK_SECONDS)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
