"""Run a benchmark that measures in processes of their own; here those that run Python are forked from this one, which
has imported the engine: `python in_forks.py BENCHMARK options...`."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from forking import status_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class Forked(subprocess.Popen[Any]):
    """A process that runs a script of Python, or a program given by `-c`, without another start of the interpreter."""

    def __init__(
        self, command: Sequence[str], *arguments: Any, env: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        if command[0] == sys.executable and (command[1] == "-c" or command[1].endswith(".py")):
            before = set(os.listdir("/dev/fd"))
            options["preexec_fn"] = lambda: _become(command[1:], env, before)
        super().__init__(command, *arguments, env=env, **options)


def _become(words: Sequence[str], environment: Mapping[str, str] | None, before: set[str]) -> None:
    """In the fork: run what was to be run, with its own input and output, and end."""
    status = 1
    atexit._clear()  # the folders that the other process will remove are its own
    try:
        for name in set(os.listdir("/dev/fd")) - before - {"0", "1", "2"}:  # the other process waits until one closes
            try:
                os.close(int(name))
            except OSError:  # the folder was listed through it
                continue
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115  # to its end
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        status = status_of(lambda: _run(list(words)))
    finally:
        os._exit(status)


def _run(words: list[str]) -> None:
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _settle_threads() -> None:
    """Let torch renew its pool of threads now; threads that are the first to use it after a fork, as those that load a
    model's weights, find none while one of them renews it ("Invalid thread pool")."""
    torch.set_num_threads(torch.get_num_threads())


def main() -> None:
    """Run the benchmark of the command line."""
    del sys.argv[0]
    sys.path.insert(0, str(BENCHMARKS))
    os.register_at_fork(after_in_child=_settle_threads)
    subprocess.Popen = Forked  # type: ignore[misc]  # what `subprocess.run` starts, too
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]
    runpy.run_path(str(BENCHMARKS / sys.argv[0]), run_name="__main__")


if __name__ == "__main__":
    main()
