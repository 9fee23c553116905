"""Start Python processes, and look at those that tests have started, directly or not.

Importing torch, transformers and the package takes six seconds of processor time. The processes of `PythonProcess` are
forked from the fork server of `multiprocessing`, which has imported them once.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import re
import runpy
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "mini_agentic_rl.commands.train",
        "mini_agentic_rl.gateway.served_policy",
        "mini_agentic_rl.algorithm.grpo",
        "mini_agentic_rl.store.sql",
        "mini_agentic_rl.gateway.http.server",
        "peft",
    ]
)


class PythonProcess:
    """Run `python script options...`, started at once; as a context manager it is killed when left early.

    Args:
        script: a file, or the name of a module, as after `python -m`.
        options: the rest of the command line.
        environment: variables beside those of this process.
        held: its standard input ends when this object, or this process, does; otherwise it is empty.
    """

    def __init__(
        self,
        script: str | Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        held: bool = False,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self.stdout_file, self.stderr_file = folder / "stdout", folder / "stderr"
        stdin = Path(os.devnull)
        self._hold: int | None = None
        if held:
            stdin = folder / "stdin"
            os.mkfifo(stdin)
            self._hold = os.open(stdin, os.O_RDWR)  # opening it for writing alone would wait for the reader
        variables = {**os.environ, **(environment or {})}
        files = (stdin, self.stdout_file, self.stderr_file)
        arguments = ([str(script), *options], variables, os.getcwd(), files)
        self._process = _FORKS.Process(target=_run_script, args=arguments)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def send_signal(self, number: int) -> None:
        if self.is_alive:
            os.kill(self.pid, number)

    def wait_for(self, beginning: str) -> None:
        """Wait until a line on standard error begins so."""
        self._wait_until(lambda: any(line.startswith(beginning) for line in self.stderr.splitlines()))

    def wait_for_word(self, beginning: str) -> str:
        """Wait for a whole word on standard error that begins so, and return the first one."""
        word = re.compile(re.escape(beginning) + r"\S+(?=\s)")
        self._wait_until(lambda: word.search(self.stderr) is not None)
        return word.findall(self.stderr)[0]

    def wait_for_line(self) -> str:
        """Wait for the first whole line on standard output, and return it."""
        self._wait_until(lambda: "\n" in self.stdout)
        return self.stdout.partition("\n")[0]

    def _wait_until(self, is_true: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not is_true():
            assert self.is_alive, self.stderr[-3000:]
            assert time.monotonic() < end, self.stderr[-3000:]
            time.sleep(0.01)

    def wait(self, timeout: float = 270.0) -> int:
        """Wait for its end and return its exit status, minus the number of a signal; kill it when it is late."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
            raise AssertionError(f"still running after {timeout} s:\n{self.stderr[-3000:]}")
        return self._process.exitcode

    @property
    def stdout(self) -> str:
        return self.stdout_file.read_text() if self.stdout_file.exists() else ""

    @property
    def stderr(self) -> str:
        return self.stderr_file.read_text() if self.stderr_file.exists() else ""

    def __enter__(self) -> PythonProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()
        if self._hold is not None:
            os.close(self._hold)
        self._folder.cleanup()


def run_python(
    script: str | Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    expect: int = 0,
    timeout: float = 270.0,
) -> tuple[str, str]:
    """Run `python script options...`, which ends with the status `expect`; return its standard output and error."""
    with PythonProcess(script, *options, environment=environment) as process:
        status = process.wait(timeout)
        assert status == expect, f"status {status}:\n{process.stderr[-3000:]}"
        return process.stdout, process.stderr


def _run_script(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    files: Sequence[Path],
) -> None:
    """Run a script as Python does, in a process that is forked from the fork server."""
    gc.freeze()  # a collection of what is imported would copy the memory shared with the fork server
    for descriptor, file in enumerate(files):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(file, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115  # to its end
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    script = command[0]
    is_file = script.endswith(".py")
    sys.argv = list(command)
    sys.path[:0] = [
        str(Path(script).parent) if is_file else folder,
        *environment.get("PYTHONPATH", "").split(os.pathsep),
    ]
    try:
        if is_file:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # the fork server ends its processes without them


_KEPT = re.compile(r"-m mini_agentic_rl\.\S*worker|resource_tracker|forkserver|rl-watchdog|postgres|secantus")
"""Helpers that wait for their next question (`DeadlineProcess`) and servers, which live as long as the test run."""


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def family() -> list[str]:
    """Return the command lines of the processes that this one has started, directly or not, and that still run."""
    children = [one for one in psutil.Process().children(recursive=True) if _runs(one)]
    return [line for line in map(_command_line, children) if line and not _KEPT.search(line)]


def all_have_ended(processes: Sequence[psutil.Process], timeout: float) -> bool:
    """Return whether all have ended within `timeout` seconds; one that nobody has reaped yet counts as ended."""
    end = time.monotonic() + timeout
    while any(_runs(one) for one in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _command_line(process: psutil.Process) -> str:
    """Return the words of a process's command; nothing for one that has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
