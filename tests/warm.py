"""Start processes that need not import the engine again: each is forked from one that has.

Importing torch, transformers and the package takes ten seconds of processor time, most of what a short script takes. A
process from here is as real as another: it has its own memory, files, signals and exit status, and can be killed.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import multiprocessing
import os
import re
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

_IMPORTED = (
    "mini_agentic_rl.jobs.train",
    "mini_agentic_rl.gateway.served_policy",
    "mini_agentic_rl.algorithm.grpo.mini_grpo",
    "mini_agentic_rl.cli",
    "mini_agentic_rl.store.sql",
    "mini_agentic_rl.gateway.http.server",
    "peft",
    "openai",
    "warm",
)
NETWORK = "TEST_NETWORK"
"""Variable that names the file of the network namespace that a process runs in."""
_CLONE_NEWNET = 0x40000000
"""Of Linux's sched.h."""
_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(list(_IMPORTED))


class WarmProcess:
    """Run `python script options...`, begun at once; as a context manager it is killed when left early.

    Args:
        script: a file, or the name of a module, as after `python -m`.
        options: what follows it on the command line.
        environment: variables beside those of this process.
        held: its standard input ends when this object, or this process, does; otherwise it is empty.
    """

    def __init__(
        self, script: str | Path, *options: str, environment: Mapping[str, str] | None = None, held: bool = False
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.stdout_file = Path(self._folder.name) / "stdout"
        self.stderr_file = Path(self._folder.name) / "stderr"
        stdin = os.devnull
        self._hold: int | None = None
        if held:
            stdin = str(Path(self._folder.name) / "stdin")
            os.mkfifo(stdin)
            self._hold = os.open(stdin, os.O_RDWR)  # for writing alone it would wait for the reader
        given = (str(script), options, dict(os.environ) | dict(environment or {}), os.getcwd())
        self._process = _FORK.Process(target=_run, args=(*given, stdin, str(self.stdout_file), str(self.stderr_file)))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait_for(self, beginning: str) -> None:
        """Wait until a line on standard error begins so.

        Raises:
            AssertionError: the process ended, or two minutes passed, without one.
        """
        self._wait_until(lambda: any(line.startswith(beginning) for line in self.stderr.splitlines()))

    def wait_for_word(self, beginning: str) -> str:
        """Wait for a whole word on standard error that begins so, and return the first one.

        Raises:
            AssertionError: the process ended, or two minutes passed, without one.
        """
        word = re.compile(re.escape(beginning) + r"\S+(?=\s)")
        self._wait_until(lambda: word.search(self.stderr) is not None)
        return word.findall(self.stderr)[0]

    def wait_for_line(self) -> str:
        """Wait for the first whole line on standard output, and return it.

        Raises:
            AssertionError: the process ended, or two minutes passed, without one.
        """
        self._wait_until(lambda: "\n" in self.stdout)
        return self.stdout.partition("\n")[0]

    def _wait_until(self, told: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not told():
            assert self._process.is_alive(), self.stderr[-3000:]
            assert time.monotonic() < end, self.stderr[-3000:]
            time.sleep(0.01)

    def wait(self, timeout: float = 150.0) -> int:
        """Wait for its end and return its exit status, below 0 for the signal that ended it.

        Raises:
            AssertionError: it runs for more than `timeout` seconds; it is killed.
        """
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

    def __enter__(self) -> WarmProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()
        if self._hold is not None:
            os.close(self._hold)
        self._folder.cleanup()


def run_warm(
    script: str | Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    expect: int = 0,
    timeout: float = 150.0,
) -> tuple[str, str]:
    """Run `python script options...`, which ends with the status `expect`; return its standard output and error."""
    with WarmProcess(script, *options, environment=environment) as process:
        status = process.wait(timeout)
        assert status == expect, f"status {status}:\n{process.stderr[-3000:]}"
        return process.stdout, process.stderr


def _run(
    script: str,
    options: tuple[str, ...],
    environment: dict[str, str],
    folder: str,
    stdin: str,
    stdout: str,
    stderr: str,
) -> None:
    import torch  # what starts the process need not have imported it

    gc.freeze()  # what has been imported stays: a look through it would only copy the memory shared with the parent
    os.dup2(os.open(stdin, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # it stays open to the end
    for descriptor, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    if NETWORK in environment:
        _enter(environment[NETWORK])
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.argv = [script, *options]
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    is_file = script.endswith(".py")
    sys.path[:0] = [str(Path(script).parent) if is_file else folder, *filter(None, paths)]
    try:
        if is_file:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()


def _enter(network: str) -> None:
    """Move this thread, the only one yet, into a network namespace; `os.setns` is there from Python 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(network) as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {network}")
