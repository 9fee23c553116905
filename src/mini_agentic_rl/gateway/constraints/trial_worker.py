"""The process in which grammars are compiled for a try: each in a fork of its own, which may be killed.

    python -m mini_agentic_rl.gateway.constraints.trial_worker

Its first line of input is the tokenizer and the bounds; each further line is a question, or takes one back. Every
question gets one line of output. A fork has so much processor time, counted by the system and not by the clock, and so
much memory beyond what this process has; where it asks for more, the system ends it.

What is quick does not wait for what is slow: each question is first tried for `QUICK_SECONDS` and, if that was not
enough, once more with all of its time, in a lane of its own and with a low priority.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import psutil
from llguidance import LLTokenizer

from ...processes import MEMORY_IS_BOUNDED
from .grammar import GrammarError, check_schema, compile_grammar
from .trial import QUICK_SECONDS

LANE_FORKS: Final = 2
"""Forks at once in each of the two lanes."""
_SLOW_NICENESS: Final = 15
"""Priority of a fork of the slow lane: below that of the sampling, and of what is quick."""
_MEMORY_CHECK_SECONDS: Final = 0.05
"""Seconds between two looks at the memory of forks, where the kernel does not bound it."""
_LONGEST_MESSAGE: Final = 1000
"""Characters of a reason that is handed on."""

Answer = dict[str, Any]


def try_grammar(question: Answer, tokens: LLTokenizer) -> Answer:
    """Check the schemas of a question one by one, then compile its grammar.

    Returns:
        `refused`: the index of the first schema that cannot be compiled and has to be, or -1 for the grammar, and the
        reason; else `loosened`: the indices of those that cannot be compiled and need not be. Where there are any, the
        grammar was not compiled.
    """
    loosened = []
    for index, (schema, needed) in enumerate(question["schemas"]):
        try:
            check_schema(schema)
        except GrammarError as error:
            if needed:
                return {"refused": [index, str(error)[:_LONGEST_MESSAGE]]}
            loosened.append(index)
    if not loosened:
        try:
            compile_grammar(question["grammar"], tokens)
        except GrammarError as error:
            return {"refused": [-1, str(error)[:_LONGEST_MESSAGE]]}
    return {"loosened": loosened}


@dataclass
class _Question:
    id: int
    value: Answer
    slow: bool = False
    pid: int = 0
    answer: int = -1
    """File descriptor from which the fork's answer is read."""


@dataclass
class _Lane:
    seconds: float
    """Processor time of a fork."""
    niceness: int = 0
    waiting: deque[_Question] = field(default_factory=deque)
    forks: int = 0


class TrialWorker:
    """Answers questions by forks.

    Args:
        attempt: answers one; called in the fork.
        seconds: processor time of a fork.
        mib: memory that it may take.
    """

    def __init__(self, attempt: Callable[[Answer], Answer], seconds: float, mib: int) -> None:
        self._attempt = attempt
        self._pid = os.getpid()
        self._mib = mib
        self._memory = psutil.Process().memory_info().rss
        self._quick = _Lane(min(QUICK_SECONDS, seconds))
        self._slow = _Lane(seconds, _SLOW_NICENESS)
        self._running: dict[int, _Question] = {}

    @property
    def busy(self) -> bool:
        """True if forks run."""
        return bool(self._running)

    def ask(self, id_: int, value: Answer) -> None:
        """Put a question into the quick lane."""
        self._quick.waiting.append(_Question(id_, value))
        self._start_waiting()

    def take_back(self, id_: int) -> None:
        """Forget a question; its fork is killed."""
        for lane in (self._quick, self._slow):
            lane.waiting = deque(question for question in lane.waiting if question.id != id_)
        for question in self._running.values():
            if question.id == id_:
                os.kill(question.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Answer for the forks that have ended, and start those that waited for them."""
        while self._running:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            question = self._running.pop(pid)
            lane = self._slow if question.slow else self._quick
            lane.forks -= 1
            with os.fdopen(question.answer, "rb") as stream:
                line = stream.read()
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGPROF and not question.slow and self._slow.seconds > self._quick.seconds:
                question.slow = True
                self._slow.waiting.append(question)
            elif code == 0:
                _tell({"id": question.id, **json.loads(line)})
            else:
                _tell({"id": question.id, "ended": "time" if code == -signal.SIGPROF else "memory"})
        self._start_waiting()

    def end_oversized(self) -> None:
        """Kill forks that take too much memory; for a kernel that does not bound it."""
        for pid in self._running:
            with contextlib.suppress(psutil.Error):  # it has ended
                if psutil.Process(pid).memory_info().rss - self._memory > self._mib << 20:
                    os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill all forks."""
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _start_waiting(self) -> None:
        for lane in (self._quick, self._slow):
            while lane.waiting and lane.forks < LANE_FORKS:
                self._fork(lane.waiting.popleft(), lane)

    def _fork(self, question: _Question, lane: _Lane) -> None:
        question.answer, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run_fork(self._attempt, question.value, theirs, lane, self._mib, self._pid)
        os.close(theirs)
        question.pid = pid
        self._running[pid] = question
        lane.forks += 1


def _run_fork(
    attempt: Callable[[Answer], Answer], value: Answer, answer: int, lane: _Lane, mib: int, worker: int
) -> None:
    """Answer within bounds, and end: the code after the fork is never reached."""
    status = 1
    try:
        _die_with(worker)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # last words of a library without memory
        os.nice(lane.niceness)
        _confine(mib)
        before = _peak()
        signal.setitimer(signal.ITIMER_PROF, lane.seconds)  # its signal ends the process, in whatever code it is
        began = time.process_time()
        outcome = attempt(value)
        outcome["seconds"], outcome["mib"] = time.process_time() - began, (_peak() - before) / 2**20
        os.write(answer, json.dumps(outcome).encode())
        status = 0
    finally:
        os._exit(status)


def _die_with(worker: int) -> None:
    """Have the kernel kill this fork when the worker is gone, which then cannot."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != worker:
        os.kill(os.getpid(), signal.SIGKILL)


def _peak() -> int:
    """Return the most bytes of memory that this process has had."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _confine(mib: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # macOS does not bound memory: see `end_oversized`
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
        allowed = pages * os.sysconf("SC_PAGE_SIZE") + (mib << 20)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))


def _tell(answer: Answer) -> None:
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


class _Input:
    """The lines that have come so far."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def read(self) -> list[Answer] | None:
        """Return the next messages, once some of the input can be read; None at its end."""
        data = os.read(0, 2**20)
        if not data:
            return None
        self._rest += data
        if b"\n" not in data:
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [json.loads(line) for line in lines]


def main() -> None:
    """Answer until the input ends, or SIGTERM comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to a whole process group; the asker ends this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ended, ending = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(ending, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ending, warn_on_full_buffer=False)
    lines = _Input()
    worker: TrialWorker | None = None
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(ended, selectors.EVENT_READ)
            while True:
                watched = not MEMORY_IS_BOUNDED and worker is not None and worker.busy
                ready = {key.fd for key, _ in selector.select(_MEMORY_CHECK_SECONDS if watched else None)}
                if watched and worker is not None:
                    worker.end_oversized()
                if ended in ready:
                    os.read(ended, 4096)
                    if worker is not None:
                        worker.reap()
                messages = lines.read() if 0 in ready else []
                if messages is None:
                    return
                for message in messages:
                    if worker is None:
                        worker = _open(message)
                    elif "take_back" in message:
                        worker.take_back(message["take_back"])
                    else:
                        worker.ask(message["id"], message)
    finally:
        if worker is not None:
            worker.end()


def _open(setup: Answer) -> TrialWorker:
    tokens = LLTokenizer(setup["tokenizer"], eos_token=setup["end_ids"])
    return TrialWorker(lambda question: try_grammar(question, tokens), setup["seconds"], setup["mib"])


if __name__ == "__main__":
    main()
