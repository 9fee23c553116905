"""The client of the process that tries whether a grammar compiles within bounds (`trial_worker.py`).

A compilation in the server's process could not be interrupted, and the limits of the library do not bound it: twenty
patterns that must hold at once take minutes and all memory. A grammar is compiled here only after the trial has shown
its cost.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...processes import DeadlineProcess, EndedError, LateError, NotReadyError, start_child

if TYPE_CHECKING:
    from ..settings import GrammarLimits

CAN_FORK: Final = hasattr(os, "fork")
"""False on Windows, where `SpawnedTrials` stands in for `GrammarTrials`."""
_CLOCK_SHARE: Final = 4
"""Seconds of the clock that a try without a fork may take, for each second of processor time that it may take."""
QUICK_SECONDS: Final = 0.035
"""CPU time of the first trial; usual grammars take a fraction of it."""
MAX_WAITING: Final = 64
"""Maximum number of concurrent trials."""
_END_SECONDS: Final = 1.0
"""Seconds for the process to end after SIGTERM."""


class NoTrialError(RuntimeError):
    """The process ended, or has too many trials."""


class TrialProcessEndedError(NoTrialError):
    """The process ended before it answered."""


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of a trial."""

    seconds: float = 0.0
    """CPU time of the compilation."""
    mib: float = 0.0
    """Memory of the compilation."""
    loosened: tuple[int, ...] = ()
    """Indices of optional schemas that cannot be compiled; then the grammar was not compiled."""
    refused: tuple[int, str] | None = None
    """Index of a schema that cannot be compiled, -1 for the grammar, and the reason."""
    ended: str = ""
    """The limit that ended it: `time` or `memory`."""


class GrammarTrials:
    """Starts the process for the first trial, and stops it when the object is deleted. Thread-safe.

    Args:
        definition: returns the tokenizer as JSON.
        end_ids: ids that end an answer.
        limits: CPU time and memory of a trial.
    """

    def __init__(self, definition: Callable[[], str], end_ids: Sequence[int], limits: GrammarLimits) -> None:
        self._definition = definition
        self._end_ids = list(end_ids)
        self._limits = limits
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._process: _Process | None = None

    def ask(self, schemas: Sequence[tuple[str, bool]], grammar: str) -> Future[TrialOutcome]:
        """Start a trial; cancelling the future ends it. Blocks while the process starts.

        Args:
            schemas: JSON texts; True for those that must compile.
            grammar: the grammar with all schemas.

        Raises:
            NoTrialError: there are too many trials.
        """
        with self._lock:
            process = self._process
            if process is None or not process.alive:
                process = self._process = self._start()
            return process.ask(next(self._numbers), {"schemas": list(schemas), "grammar": grammar})

    def close(self) -> None:
        """Stop the process; the next trial starts it again."""
        with self._lock:
            if self._process is not None:
                self._process.close()
            self._process = None

    def _start(self) -> _Process:
        process = _Process()
        limits = self._limits
        process.send(
            {
                "tokenizer": self._definition(),
                "end_ids": self._end_ids,
                "seconds": limits.max_grammar_seconds,
                "mib": limits.max_grammar_mib,
            }
        )
        return process


class SpawnedTrials:
    """`GrammarTrials` for a system without forks: one process tries one grammar at a time.

    A try is bounded by the clock, and its memory by a regular look at it; the process is then killed and replaced.
    """

    def __init__(self, definition: Callable[[], str], end_ids: Sequence[int], limits: GrammarLimits) -> None:
        self._definition = definition
        self._end_ids = list(end_ids)
        self._limits = limits
        self._thread = ThreadPoolExecutor(1, "grammar-trials")
        self._open: set[Future[TrialOutcome]] = set()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._helper: DeadlineProcess | None = None

    def ask(self, schemas: Sequence[tuple[str, bool]], grammar: str) -> Future[TrialOutcome]:
        """See `GrammarTrials.ask`."""
        if len(self._open) >= MAX_WAITING:
            raise NoTrialError(f"{MAX_WAITING} forms of answers are being tried already")
        future = self._thread.submit(self._try, {"schemas": list(schemas), "grammar": grammar})
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def close(self) -> None:
        """End the process; the next question starts one again."""
        if self._helper is not None:
            self._helper.close()

    def _try(self, question: dict[str, Any]) -> TrialOutcome:
        try:
            if self._helper is None:
                self._helper = self._make_helper()
            return _outcome(self._helper.ask(question, _CLOCK_SHARE * self._limits.max_grammar_seconds))
        except LateError:
            return TrialOutcome(ended="time")
        except EndedError:
            return TrialOutcome(ended="memory")
        except NotReadyError as error:
            raise NoTrialError(str(error)) from error

    def _make_helper(self) -> DeadlineProcess:
        self._folder = tempfile.TemporaryDirectory(prefix="mini-agentic-rl-")
        file = Path(self._folder.name) / "tokenizer.json"
        file.write_text(json.dumps({"tokenizer": self._definition(), "end_ids": self._end_ids}), encoding="utf-8")
        return DeadlineProcess(f"{__package__}.spawned_trial_worker", str(file), str(self._limits.max_grammar_mib))


class _Process:
    """A running process. One thread writes messages, one reads answers, so that nobody waits for its pipes."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", f"{__package__}.trial_worker"]
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}  # a fork has one thread
        process = start_child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._process = process
        self._open: dict[int, Future[TrialOutcome]] = {}
        self._ended = threading.Event()
        """Set when the reader has ended. `Popen.poll` alone may miss the end: another thread waits for the process."""
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.close = weakref.finalize(self, _end, process, self._messages)
        work = {
            "writer": partial(_write, process, self._messages),
            "reader": partial(_read, process, self._open, self._ended),
        }
        for name, target in work.items():
            threading.Thread(target=target, name=f"grammar-trials-{name}", daemon=True).start()

    @property
    def alive(self) -> bool:
        return not self._ended.is_set() and self._process.poll() is None

    def ask(self, number: int, question: dict[str, Any]) -> Future[TrialOutcome]:
        if len(self._open) >= MAX_WAITING:
            raise NoTrialError(f"{MAX_WAITING} forms of answers are being tried already")
        future: Future[TrialOutcome] = Future()
        self._open[number] = future
        future.add_done_callback(lambda done: self._take_back(number) if done.cancelled() else None)
        self.send({"id": number, **question})
        if not self.alive:  # it ended after the reader failed all futures
            _fail(self._open)
        return future

    def send(self, message: dict[str, Any]) -> None:
        self._messages.put(message)

    def _take_back(self, number: int) -> None:
        self._open.pop(number, None)
        self.send({"take_back": number})


def _write(process: subprocess.Popen[bytes], messages: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    """Write messages until None. Like `_read`, it has no reference to the owner of the process."""
    assert process.stdin is not None
    with contextlib.suppress(OSError), process.stdin:  # the reader reports its end
        while (message := messages.get()) is not None:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()


def _read(process: subprocess.Popen[bytes], open_: dict[int, Future[TrialOutcome]], ended: threading.Event) -> None:
    """Deliver answers until the process ends."""
    assert process.stdout is not None
    try:
        with process.stdout:
            for line in process.stdout:
                # in a frame of its own, so that no future is referenced until the next answer
                _give(open_, json.loads(line))
    finally:
        ended.set()  # before the futures fail, so that `ask` finds it set for a later future
        process.kill()  # malformed output ends the process as well
        _fail(open_)


def _give(open_: dict[int, Future[TrialOutcome]], answer: dict[str, Any]) -> None:
    future = open_.pop(answer["id"], None)
    if future is not None and future.set_running_or_notify_cancel():
        future.set_result(_outcome(answer))


def _outcome(answer: dict[str, Any]) -> TrialOutcome:
    refused = answer.get("refused")
    return TrialOutcome(
        seconds=answer.get("seconds", 0.0),
        mib=answer.get("mib", 0.0),
        loosened=tuple(answer.get("loosened", ())),
        refused=None if refused is None else (refused[0], refused[1]),
        ended=answer.get("ended", ""),
    )


def _fail(open_: dict[int, Future[TrialOutcome]]) -> None:
    while open_:
        with contextlib.suppress(KeyError):  # the other thread took it
            _, future = open_.popitem()
            if future.set_running_or_notify_cancel():
                future.set_exception(TrialProcessEndedError("the process that tries grammars has ended"))


def _end(process: subprocess.Popen[bytes], messages: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    messages.put(None)
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
