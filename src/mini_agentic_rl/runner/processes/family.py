"""A process and everything that it has started, found and ended as one family.

A member is found in one of three ways: it descends from the first process; it is in that one's process group, whose
number is the first one's process id; or it carries the family's mark in its environment, which outlives a parent that
has died and a group that was left. Marks are paths: that of a family which a member has started begins with the mark of
the member's own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time

import psutil

from ...processes import at_death

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
