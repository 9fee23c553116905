"""Child processes that are killed when this process ends, however it ends, and calls that are made at its death.

    process = start_child([sys.executable, "-m", "package.worker"], stdin=subprocess.PIPE)

A watchdog process reads a pipe whose only writer is this process. When the pipe ends, it makes every call that
`at_death` registered; `start_child` registers the kill of its child. The watchdog is started by the first registration
and is no child of this process, because some processes kill their children when they end.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
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
        revoke = at_death(__name__, "kill_process", process.pid, created)
        threading.Thread(target=_revoke_at_end, args=(process, revoke), name="child-end", daemon=True).start()
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


def at_death(module: str, function: str, *arguments: Any) -> Callable[[], None]:
    """Have another process call `module.function(*arguments)` when this one ends; return a function that revokes it.

    The arguments are JSON values. An exception of the call is ignored.

    Raises:
        OSError: the watchdog cannot be started.
    """
    number = next(_numbers)
    _register(number, [module, function, list(arguments)])
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


def _revoke_at_end(process: subprocess.Popen[Any], revoke: Callable[[], None]) -> None:
    process.wait()
    revoke()


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
