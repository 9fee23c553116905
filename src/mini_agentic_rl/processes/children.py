"""Child processes that are killed when this process ends, however it ends, and families of processes.

    process = start_child([sys.executable, "-m", "package.worker"], stdin=subprocess.PIPE)

A watchdog process reads a pipe whose only writer is this process. When the pipe ends, it makes every call that
`at_death` registered; `start_child` registers the kill of its child. The watchdog is started by the first registration
and is no child of this process, because some processes kill their children when they end.

A family is a process with everything that it has started, ended as a whole by `end_family`. A member descends from the
first process, or is in its process group, or has the family's mark in its environment. The mark survives a dead parent
and a changed group. Marks are paths: the mark of a family that a member starts begins with the member's own mark.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import psutil

WATCHDOG_NAME: Final = "mini-agentic-rl-watchdog"
"""An argument of the watchdog, which a list of processes shows."""

_WATCHDOG: Final = """
import importlib, json, os, signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
sys.path[:] = json.loads(sys.argv[1])
if hasattr(os, "fork") and os.fork():
    os._exit(0)
calls = {}
for line in sys.stdin:
    number, *call = json.loads(line)
    if call:
        calls[number] = call
    else:
        calls.pop(number, None)
for module, function, arguments in calls.values():
    try:
        getattr(importlib.import_module(module), function)(*arguments)
    except Exception:  # no process is left that could log it, and the other calls have to be made
        pass
"""


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program as `subprocess.Popen(command, **options)` does; it is killed when this process ends.

    Processes that the program starts itself are not killed: a whole family needs `end_family`.

    Raises:
        OSError: there is no such program, or it cannot be executed.
    """
    process = subprocess.Popen(command, **options)
    created = creation_time(process.pid)
    if created is not None:
        revoke = at_death(kill_process, process.pid, created)

        def revoke_at_end() -> None:
            process.wait()
            revoke()

        threading.Thread(target=revoke_at_end, name="child-end", daemon=True).start()
    return process


def run_child(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its exit status and its output; it is killed when this process ends.

    Raises:
        OSError: there is no such program.
    """
    process = start_child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    with process:
        try:
            output, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(command), process.returncode, output, errors)


def at_death(function: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    """Have another process call `function(*arguments)` when this one ends; return a function that revokes it.

    The function is one of a module, the arguments are JSON values. An exception of the call is ignored.

    Raises:
        OSError: the watchdog cannot be started.
    """
    number = next(_numbers)
    _register(number, [function.__module__, function.__name__, list(arguments)])
    return lambda: _register(number, None)


def kill_process(pid: int, created: float) -> None:
    """Kill the process with this number, if it is still the one that was created at this time, in seconds."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.create_time() == created:
            process.kill()


def creation_time(pid: int) -> float | None:
    """Return when a process was created, in seconds since the epoch; None if it has ended."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


_lock = threading.Lock()
_numbers = itertools.count()
_watchdog: subprocess.Popen[bytes] | None = None
_calls: dict[int, list[Any]] = {}


def _register(number: int, call: list[Any] | None) -> None:
    """Add a call to those of the watchdog, or remove it; start the watchdog if none runs."""
    global _watchdog
    with _lock:
        if call is None:
            _calls.pop(number, None)
        else:
            _calls[number] = call
        if (_watchdog is None or not _write(_watchdog, [number, *(call or ())])) and _calls:
            _watchdog = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WATCHDOG, json.dumps(sys.path), WATCHDOG_NAME],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            if hasattr(os, "fork"):
                _watchdog.wait()  # the watchdog itself is a fork of this process
            for each, kept in _calls.items():
                _write(_watchdog, [each, *kept])


def _write(watchdog: subprocess.Popen[bytes], message: list[Any]) -> bool:
    """Write to the watchdog; return False if it was killed."""
    assert watchdog.stdin is not None
    try:
        watchdog.stdin.write(json.dumps(message).encode() + b"\n")
    except OSError:
        return False
    return True


def _forget_in_fork() -> None:
    """Close the pipe in a forked process: it would outlive the parent there."""
    global _lock, _watchdog
    if _watchdog is not None and _watchdog.stdin is not None:
        _watchdog.stdin.close()
        _watchdog.returncode = 0  # no child of this process: nothing to wait for
    _lock, _watchdog = threading.Lock(), None
    _calls.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_fork)


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
    at_death(end_family, 0, mark)
    return mark


def find_family(pid: int, mark: str) -> list[psutil.Process]:
    """Return the running members, without the calling process; the first process `pid` may have ended, 0 is none."""
    descendants: set[int] = set()
    if pid:  # 0 is the ancestor of all processes on macOS, and the group of the kernel's on Linux
        with contextlib.suppress(psutil.Error):
            descendants = {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if process.pid != os.getpid()
        and process.info["status"] != psutil.STATUS_ZOMBIE
        and (
            process.pid in descendants
            or (pid and pid in (process.pid, _group(process.pid)))
            or f"{(process.info['environ'] or {}).get(FAMILY_VARIABLE)}/".startswith(f"{mark}/")
        )
    ]


def end_family(pid: int, mark: str, grace: float = 0.0) -> None:
    """Terminate every member, kill those that are left after `grace` seconds, and wait until all have ended. Blocks.

    With a grace of 0 all are killed at once, as on Windows, which has no SIGTERM.

    Args:
        pid: number of the first process, which may have ended; 0 for none.
        mark: mark of the family.
        grace: seconds between the two.
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
                end_family(pid, mark)


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
