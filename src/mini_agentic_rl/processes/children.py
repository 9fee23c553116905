"""Processes that end when the one that started them ends, however that ends, and calls that its death sets off.

    process = start_child([sys.executable, "-m", "package.worker"], stdin=subprocess.PIPE)

On Linux the kernel kills such a process at its parent's death, even while it computes without looking up. The kernel's
"parent" is the thread that started it, so that one thread, which lives as long as this process, starts them all. A new
process asks for that signal before it becomes what it is to run; a parent that died sooner is noticed there. On other
systems a keeper kills it: a small process that waits at the end of a pipe whose other end nobody else holds.

The keeper does other things too when its pipe ends: whatever `at_death` was given. It is no child of the process that
it waits for, since some processes kill their children when they end.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

import psutil

DEATH_SIGNAL: Final = sys.platform == "linux"
"""True where the kernel kills a process whose parent has died, if it is asked to."""

_BOOTSTRAP: Final = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != parent:
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"{command[0]}: {error.strerror}")
"""
"""PR_SET_PDEATHSIG is 1; it survives the execution of another program, as do the signals that Python ignores."""

KEEPER_NAME: Final = "mini-agentic-rl-keeper"
"""An argument of the keeper, which shows in a list of processes."""

_KEEPER: Final = """
import json, os, signal, sys
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
import importlib
for module, function, arguments in calls.values():
    try:
        getattr(importlib.import_module(module), function)(*arguments)
    except Exception:  # nobody is left to tell, and the other calls are to be made
        pass
"""


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program as `subprocess.Popen(command, **options)` does; it is killed when this process ends.

    What the program has started itself is its own affair: a family of processes takes `at_death`.

    Raises:
        OSError: there is no such program, or it cannot be executed.
    """
    if shutil.which(command[0]) is None:
        kind = PermissionError if os.path.exists(command[0]) else FileNotFoundError
        number, text = (13, "Permission denied") if kind is PermissionError else (2, "No such file or directory")
        raise kind(number, text, command[0])
    if not DEATH_SIGNAL:
        process = subprocess.Popen(command, **options)
        revoke = at_death(__name__, "kill_process", process.pid, psutil.Process(process.pid).create_time())
        threading.Thread(target=_revoke_at_end, args=(process, revoke), name="child-end", daemon=True).start()
        return process
    whole = [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, str(os.getpid()), *command]
    future: Future[subprocess.Popen[Any]] = Future()
    _starter().put((whole, options, future))
    try:
        return future.result()
    except BaseException:  # interrupted while it was started: nobody would know of it
        future.add_done_callback(_kill_unwanted)
        raise


def run_child(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its exit status and what it printed; it is killed when this process ends.

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
    """Have `module.function(*arguments)` called in another process when this one ends; return what revokes that.

    The arguments are JSON values. An error there is told to nobody.

    Raises:
        OSError: the process that waits for it cannot be started.
    """
    number = next(_numbers)
    _tell(number, [module, function, list(arguments)])
    return lambda: _tell(number, None)


def kill_process(pid: int, create_time: float) -> None:
    """Kill the process with this number, if it is still the one that was created at this time, in seconds."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.create_time() == create_time:
            process.kill()


def kill_group(leader: int) -> None:
    """Kill a process that was started with `start_new_session`, and all that it has started in that session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


_lock = threading.Lock()
_numbers = itertools.count()
_orders: queue.SimpleQueue[Any] | None = None
_keeper: subprocess.Popen[bytes] | None = None
_calls: dict[int, list[Any]] = {}


def _starter() -> queue.SimpleQueue[Any]:
    """Return the orders of the thread that starts processes."""
    global _orders
    with _lock:
        if _orders is None:
            _orders = queue.SimpleQueue()
            threading.Thread(target=_start_ordered, args=(_orders,), name="process-starter", daemon=True).start()
        return _orders


def _start_ordered(orders: queue.SimpleQueue[Any]) -> None:
    while True:
        command, options, future = orders.get()
        try:
            process = subprocess.Popen(command, **options)
        except BaseException as error:  # it belongs to whoever ordered the process, and this thread must not end
            future.set_exception(error)
        else:
            future.set_result(process)
        del process, future, options  # a process that its owner has forgotten is not kept from its end here


def _kill_unwanted(future: Future[subprocess.Popen[Any]]) -> None:
    if future.exception() is None:
        future.result().kill()


def _revoke_at_end(process: subprocess.Popen[Any], revoke: Callable[[], None]) -> None:
    process.wait()
    revoke()


def _tell(number: int, call: list[Any] | None) -> None:
    """Have the keeper, which the first call starts, keep a call or drop one; one that was killed is replaced."""
    global _keeper
    with _lock:
        if call is None:
            _calls.pop(number, None)
        else:
            _calls[number] = call
        if (_keeper is None or not _write(_keeper, [number, *(call or ())])) and _calls:
            _keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _KEEPER, json.dumps(sys.path), KEEPER_NAME],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            if hasattr(os, "fork"):
                _keeper.wait()  # it has left a child of its own behind, which is nobody's
            for each, kept in _calls.items():
                _write(_keeper, [each, *kept])


def _write(keeper: subprocess.Popen[bytes], message: list[Any]) -> bool:
    """Return False where somebody has killed the keeper."""
    assert keeper.stdin is not None
    try:
        keeper.stdin.write(json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        return False
    return True


def _forget() -> None:
    """In a forked process: it has neither the thread nor the keeper, and must not keep its parent's pipe open."""
    global _lock, _orders, _keeper
    if _keeper is not None and _keeper.stdin is not None:
        _keeper.stdin.close()
        _keeper.returncode = 0  # not this process's child: nothing to wait for
    _lock, _orders, _keeper = threading.Lock(), None, None
    _calls.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
