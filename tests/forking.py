"""The process that others are forked from, one for a whole test run: the workers of xdist, and those of `warm.py`.

It has imported the engine, which takes ten seconds of processor time. `python forking.py SOCKET PID …` listens at a
socket of the file system for as long as the process of that number lives. Each connection is for one process: the
client sends a line of JSON, and gets the number of the process and, when that has ended, its status, below 0 for the
signal that ended it. A process whose client has gone is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

import made_once

IMPORTED = (
    "mini_agentic_rl.commands.train",
    "mini_agentic_rl.gateway.served_policy",
    "mini_agentic_rl.algorithm.grpo",
    "mini_agentic_rl.commands",
    "mini_agentic_rl.store.sql",
    "mini_agentic_rl.gateway.http.server",
    "peft",
    "openai",
)
OF_TEST_MODULES = (
    "trl",
    "datasets",
    "anthropic",
    "agents",
    "aiohttp",
    "requests",
    "reasoning_gym",
    "pymongo",
    "psycopg",
)
"""Packages that collecting the tests imports, as far as they are there."""
SOCKET = "TEST_FORKING"
"""Variable that names the socket of the process that runs."""
NETWORK = "TEST_NETWORK"
"""Variable that names the file of the network namespace that a process runs in."""
_CLONE_NEWNET = 0x40000000
"""Of Linux's sched.h."""
_LOOK_SECONDS = 1.0


def start(*imported: str) -> str:
    """Start it for as long as this process lives, with further packages; return its socket."""
    address = str(Path(tempfile.mkdtemp(prefix="forking-")) / "socket")
    command = [sys.executable, __file__, address, str(os.getpid()), *imported]
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return address


def main() -> None:
    """Listen, import what the processes need, and serve."""
    address, run = Path(sys.argv[1]), int(sys.argv[2])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(128)
    if os.fork():
        os._exit(0)  # whoever started this may go on, and has no child that lives as long as the test run
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        gc.disable()
        for module in IMPORTED:
            importlib.import_module(module)
        for module in sys.argv[3:]:
            with contextlib.suppress(Exception):  # the tests that need it will tell
                importlib.import_module(module)
        made_once.make()
        gc.freeze()  # what is imported stays: to look through it would copy the memory shared with the processes
        gc.enable()
        _Server(listener).serve(run)
    finally:
        shutil.rmtree(address.parent)


class _Server:
    """The clients, and the processes that they have asked for."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._clients: dict[socket.socket, bytes] = {}
        self._files: dict[socket.socket, Sequence[int]] = {}
        self._processes: dict[int, socket.socket] = {}
        self._wakes, woken = socket.socketpair()
        for end in (self._wakes, woken):
            end.setblocking(False)
        self._woken = woken
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self, run: int) -> None:
        while psutil.pid_exists(run):
            ready, _, _ = select.select([self._listener, self._wakes, *self._clients], [], [], _LOOK_SECONDS)
            for one in ready:
                if one is self._listener:
                    self._clients[one.accept()[0]] = b""
                elif one is self._wakes:
                    one.recv(4096)
                elif one in self._clients:
                    self._hear(one)
            self._reap()

    def _hear(self, client: socket.socket) -> None:
        heard, files = _received(client)
        if files:
            self._files[client] = files
        if not heard:
            for pid, owner in self._processes.items():
                if owner is client:
                    os.kill(pid, signal.SIGKILL)
            del self._clients[client]
            client.close()
            return
        self._clients[client] += heard
        if self._clients[client].endswith(b"\n"):
            self._start(client, json.loads(self._clients[client]), self._files.pop(client, ()))

    def _start(self, client: socket.socket, asked: dict[str, Any], files: Sequence[int]) -> None:
        pid = os.fork()
        if pid == 0:
            self._become(asked, files)
        for file in files:
            os.close(file)
        self._processes[pid] = client
        _tell(client, pid)

    def _become(self, asked: dict[str, Any], files: Sequence[int]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for one in (self._listener, self._wakes, self._woken, *self._clients):
            one.close()
        status = 1
        try:
            status = status_of(lambda: _interpret(files=files, **asked) if files else _run(**asked))
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while self._processes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _tell(self._processes.pop(pid), os.waitstatus_to_exitcode(status))


def _received(client: socket.socket) -> tuple[bytes, list[int]]:
    """Return what was sent, and the numbers here of the files that came with it."""
    try:
        data, files, _, _ = socket.recv_fds(client, 1 << 16, 3)
    except ConnectionError:
        return b"", []
    return data, files


def _tell(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # it has gone, and `_hear` learns of that
        client.sendall(b"%d\n" % number)


def status_of(run: Callable[[], object]) -> int:
    """Run something as Python runs a script, to the end of its threads; return its exit status."""
    status = 0
    try:
        run()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does at its end
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _interpret(words: Sequence[str], environment: dict[str, str], folder: str, files: Sequence[int]) -> None:
    """Run `python words...` with these files as input, output and error."""
    import torch

    for descriptor, file in enumerate(files):
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115  # to its end
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    given = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[:0] = ["", *given]
        sys.modules["__main__"] = module = ModuleType("__main__")
        exec(words[1], module.__dict__)
    elif words[0] == "-m":
        sys.argv = [*words[1:]]
        sys.path[:0] = [folder, *given]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*words]
        sys.path[:0] = [str(Path(words[0]).parent), *given]
        runpy.run_path(words[0], run_name="__main__")


def _run(
    script: str,
    options: list[str],
    environment: dict[str, str],
    folder: str,
    path: list[str],
    stdin: str,
    stdout: str,
    stderr: str,
) -> None:
    import torch

    os.dup2(os.open(stdin, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # it stays open to the end
    for descriptor, file in ((1, stdout), (2, stderr)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    if NETWORK in environment:
        _enter(environment[NETWORK])
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.argv = [script, *options]
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    is_file = script.endswith(".py")
    sys.path = [str(Path(script).parent) if is_file else folder, *filter(None, given), *path]
    if is_file:
        runpy.run_path(script, run_name="__main__")
    else:
        runpy.run_module(script, run_name="__main__", alter_sys=True)


def _enter(network: str) -> None:
    """Move this thread, the only one yet, into a network namespace; `os.setns` is there from Python 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(network) as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {network}")


if __name__ == "__main__":
    main()
