"""The process that tries grammars: each is compiled in a fork, which the system kills at a limit.

    python -m mini_agentic_rl.gateway.constraints.trial_worker [spawned]

Standard input is a socket, which brings the tokenizer as JSON, and then a socket for each trial. A fork of this process
supervises the trial, which runs in a second fork with limits of CPU time, and of memory beyond that of this process. If
the client closes the socket of the trial, the trial ends.

With `spawned`, this process compiles trials itself, and standard input brings the tokenizer and the trials as lines:
for systems without fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from llguidance import LLTokenizer

from ...processes import (
    MEMORY_IS_BOUNDED,
    bound_memory,
    confine,
    lower_priority,
    peak_memory_bytes,
    resident_bytes,
    serve_answers,
)
from .grammar import GrammarError, check_schema, compile_grammar

_MEMORY_CHECK_SECONDS: Final = 0.05
"""Seconds between two looks at the memory of a trial, where the kernel does not bound it."""
_LONGEST_MESSAGE: Final = 1000
"""Characters of a reported reason."""

Json = dict[str, Any]


def try_grammar(trial: Json, tokens: LLTokenizer) -> Json:
    """Compile the schemas of a trial one by one, then its grammar.

    Returns:
        The fields of a `TrialOutcome`. `refused` has the first required schema that cannot be compiled; if optional
        schemas are `loosened`, the grammar was not compiled.
    """
    began, before = time.process_time(), peak_memory_bytes()
    outcome: Json = {"loosened": []}
    index = -1
    try:
        for index, (schema, needed) in enumerate(trial["schemas"]):
            try:
                check_schema(schema)
            except GrammarError:
                if needed:
                    raise
                outcome["loosened"].append(index)
        index = -1
        if not outcome["loosened"]:
            compile_grammar(trial["grammar"], tokens)
    except GrammarError as error:
        outcome = {"refused": (index, str(error)[:_LONGEST_MESSAGE])}
    mib = (peak_memory_bytes() - before) / 2**20
    return {**outcome, "seconds": time.process_time() - began, "mib": mib}


def supervise(connection: socket.socket, tokens: LLTokenizer) -> None:
    """Run the trial of a connection in a fork, and send its outcome or the limit that ended it."""
    with connection.makefile("rb") as lines:
        trial = json.loads(lines.readline())
    answer, write_end = os.pipe()
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _die_with(supervisor)
            _run_within_limits(trial, tokens, write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    pause = None if MEMORY_IS_BOUNDED else _MEMORY_CHECK_SECONDS
    memory_before = 0 if MEMORY_IS_BOUNDED else resident_bytes(supervisor)
    client = connection.fileno()
    while answer not in (ready := select.select([answer, client], [], [], pause)[0]):
        oversized = not MEMORY_IS_BOUNDED and resident_bytes(pid) - memory_before > trial["mib"] << 20
        if client in ready or oversized:
            os.kill(pid, signal.SIGKILL)
            break
    with open(answer, "rb") as file:
        outcome = file.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        outcome = json.dumps({"ended": "time" if code == -signal.SIGPROF else "memory"}).encode()
    connection.sendall(outcome)


def _run_within_limits(trial: Json, tokens: LLTokenizer, answer: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # messages of a library that runs out of memory
    lower_priority(trial["niceness"])
    confine(trial["mib"])
    signal.setitimer(signal.ITIMER_PROF, trial["seconds"])  # its signal ends the process in any code
    os.write(answer, json.dumps(try_grammar(trial, tokens)).encode())
    os._exit(0)


def _die_with(parent: int) -> None:
    """Have the kernel kill this fork when its parent dies."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _tokens(setup: Json) -> LLTokenizer:
    return LLTokenizer(setup["tokenizer"], eos_token=setup["end_ids"])


def serve_forks(control: socket.socket) -> None:
    """Run trials in forks until the other end of `control` is closed. It brings the setup, then sockets of trials."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the server ends this process
    with control.makefile("rb", buffering=0) as stream:
        size = int.from_bytes(stream.read(8), "big")
        setup = b""
        while len(setup) < size and (piece := stream.read(size - len(setup))):
            setup += piece
    if not size or len(setup) < size:  # the server has ended
        return
    tokens = _tokens(json.loads(setup))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets supervisors that have ended
    worker = os.getpid()
    while descriptors := socket.recv_fds(control, 1, 1)[1]:
        with socket.socket(fileno=descriptors[0]) as connection:
            if os.fork() == 0:
                with contextlib.suppress(OSError, ValueError):  # the client has left
                    _die_with(worker)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    control.close()
                    supervise(connection, tokens)
                os._exit(0)


def serve_one_by_one() -> None:
    """Compile trials in this process; `DeadlineProcess` bounds their time, and their memory where the kernel cannot."""

    def prepare() -> Callable[[Json], Json]:
        setup = json.loads(sys.stdin.readline())
        tokens = _tokens(setup)
        bound_memory(setup["mib"])
        return partial(try_grammar, tokens=tokens)

    serve_answers(prepare)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve_one_by_one()
    else:
        serve_forks(socket.socket(fileno=0))
