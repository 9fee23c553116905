"""The process that tries grammars: each is compiled in a fork, which the system kills at a limit.

    python -m mini_agentic_rl.gateway.constraints.trial_worker

The first line of input has the tokenizer and the limits; each further line starts or cancels a trial. Each trial is
answered with one line of output. A fork has a limit of CPU time, and of memory beyond that of this process.

Quick trials do not wait for slow ones: each first gets `QUICK_SECONDS`, and if that was not enough, the full time in a
second lane with a low priority.
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
from functools import partial
from typing import Any, Final

import psutil
from llguidance import LLTokenizer

from ...processes import MEMORY_IS_BOUNDED
from .grammar import GrammarError, check_schema, compile_grammar
from .trial import QUICK_SECONDS

LANE_FORKS: Final = 2
"""Concurrent forks in each of the two lanes."""
_SLOW_NICENESS: Final = 15
"""Niceness in the slow lane: sampling and quick trials go first."""
_MEMORY_CHECK_SECONDS: Final = 0.05
"""Seconds between two looks at the memory of forks, where the kernel does not bound it."""
_LONGEST_MESSAGE: Final = 1000
"""Characters of a reported reason."""

Answer = dict[str, Any]


def try_grammar(trial: Answer, tokens: LLTokenizer) -> Answer:
    """Compile the schemas of a trial one by one, then its grammar.

    Returns:
        `refused`: the index of the first required schema that cannot be compiled, or -1 for the grammar, and the
        reason; otherwise `loosened`: the indices of optional schemas that cannot be compiled. If there are any, the
        grammar was not compiled.
    """
    loosened = []
    for index, (schema, needed) in enumerate(trial["schemas"]):
        try:
            check_schema(schema)
        except GrammarError as error:
            if needed:
                return {"refused": [index, str(error)[:_LONGEST_MESSAGE]]}
            loosened.append(index)
    if not loosened:
        try:
            compile_grammar(trial["grammar"], tokens)
        except GrammarError as error:
            return {"refused": [-1, str(error)[:_LONGEST_MESSAGE]]}
    return {"loosened": loosened}


@dataclass
class _Trial:
    id: int
    value: Answer
    slow: bool = False
    pid: int = 0
    answer: int = -1
    """File descriptor of the fork's answer."""


@dataclass
class _Lane:
    seconds: float
    """CPU time of a fork."""
    niceness: int = 0
    waiting: deque[_Trial] = field(default_factory=deque)
    forks: int = 0


class TrialWorker:
    """Runs trials in forks.

    Args:
        attempt: runs a trial; called in the fork.
        seconds: CPU time of a fork.
        mib: memory of a fork.
    """

    def __init__(self, attempt: Callable[[Answer], Answer], seconds: float, mib: int) -> None:
        self._attempt = attempt
        self._pid = os.getpid()
        self._mib = mib
        self._memory = psutil.Process().memory_info().rss
        self._quick = _Lane(min(QUICK_SECONDS, seconds))
        self._slow = _Lane(seconds, _SLOW_NICENESS)
        self._running: dict[int, _Trial] = {}

    @property
    def busy(self) -> bool:
        """True if forks run."""
        return bool(self._running)

    def ask(self, id_: int, value: Answer) -> None:
        """Start a trial in the quick lane."""
        self._quick.waiting.append(_Trial(id_, value))
        self._start_waiting()

    def take_back(self, id_: int) -> None:
        """Cancel a trial; its fork is killed."""
        for lane in (self._quick, self._slow):
            lane.waiting = deque(trial for trial in lane.waiting if trial.id != id_)
        for trial in self._running.values():
            if trial.id == id_:
                os.kill(trial.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Answer for ended forks, and start waiting trials."""
        while self._running:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            trial = self._running.pop(pid)
            lane = self._slow if trial.slow else self._quick
            lane.forks -= 1
            with os.fdopen(trial.answer, "rb") as stream:
                line = stream.read()
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGPROF and not trial.slow and self._slow.seconds > self._quick.seconds:
                trial.slow = True
                self._slow.waiting.append(trial)
            elif code == 0:
                _tell({"id": trial.id, **json.loads(line)})
            else:
                _tell({"id": trial.id, "ended": "time" if code == -signal.SIGPROF else "memory"})
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

    def _fork(self, trial: _Trial, lane: _Lane) -> None:
        trial.answer, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run_fork(self._attempt, trial.value, theirs, lane, self._mib, self._pid)
        os.close(theirs)
        trial.pid = pid
        self._running[pid] = trial
        lane.forks += 1


def _run_fork(
    attempt: Callable[[Answer], Answer], value: Answer, answer: int, lane: _Lane, mib: int, worker: int
) -> None:
    """Run a trial within its limits and exit; never returns."""
    status = 1
    try:
        _die_with(worker)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # messages of a library that runs out of memory
        os.nice(lane.niceness)
        _confine(mib)
        before = _peak()
        signal.setitimer(signal.ITIMER_PROF, lane.seconds)  # its signal ends the process in any code
        began = time.process_time()
        outcome = attempt(value)
        outcome["seconds"], outcome["mib"] = time.process_time() - began, (_peak() - before) / 2**20
        os.write(answer, json.dumps(outcome).encode())
        status = 0
    finally:
        os._exit(status)


def _die_with(worker: int) -> None:
    """Have the kernel kill this fork when the worker dies."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != worker:
        os.kill(os.getpid(), signal.SIGKILL)


def _peak() -> int:
    """Return the peak memory of this process in bytes."""
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
    """Splits the input into lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def read(self) -> list[Answer] | None:
        """Return the next messages, once input is readable; None at its end."""
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
    """Run trials until the input ends or SIGTERM arrives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the server ends this process
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
                        tokens = LLTokenizer(message["tokenizer"], eos_token=message["end_ids"])
                        worker = TrialWorker(partial(try_grammar, tokens=tokens), message["seconds"], message["mib"])
                    elif "take_back" in message:
                        worker.take_back(message["take_back"])
                    else:
                        worker.ask(message["id"], message)
    finally:
        if worker is not None:
            worker.end()


if __name__ == "__main__":
    main()
