"""Try whether a grammar compiles within bounds, in another process (`trial_worker.py`).

A compilation in the server's process could not be interrupted, and the limits of the library do not bound it: twenty
patterns that must hold at once take minutes and all memory. A grammar is compiled here only after the trial has shown
its cost.

Quick trials do not wait for slow ones: each trial first gets `QUICK_SECONDS`, and if that was not enough, the full time
in a second lane with a low priority.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...processes import DeadlineProcess, EndedError, LateError, NotReadyError, start_child

if TYPE_CHECKING:
    from ..settings import GrammarLimits

QUICK_SECONDS: Final = 0.035
"""CPU time of the first trial; usual grammars take a fraction of it."""
MAX_WAITING: Final = 64
"""Maximum number of concurrent trials."""
_LANE_TRIALS: Final = 2
"""Trials that run at the same time in each of the two lanes."""
_SLOW_NICENESS: Final = 15
"""Niceness in the slow lane: sampling and quick trials go first."""
_CLOCK_SHARE: Final = 4
"""Seconds of the clock for each second of CPU time, where processes cannot fork and the clock is the bound."""


class NoTrialError(RuntimeError):
    """There are too many trials, or the process ended before it answered."""


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of a trial."""

    seconds: float = 0.0
    """CPU time of the compilation."""
    mib: float = 0.0
    """Memory of the compilation."""
    loosened: Sequence[int] = ()
    """Indices of optional schemas that cannot be compiled; then the grammar was not compiled."""
    refused: tuple[int, str] | None = None
    """Index of a schema that cannot be compiled, -1 for the grammar, and the reason."""
    ended: str = ""
    """The limit that ended it: `time` or `memory`."""


class GrammarTrials:
    """Starts the worker for the first trial, and stops it when the object is deleted. Used from one event loop at a
    time.

    Args:
        tokenizer: the tokenizer as JSON.
        end_ids: ids that end an answer.
        limits: CPU time and memory of a trial.
    """

    def __init__(self, tokenizer: str, end_ids: Sequence[int], limits: GrammarLimits) -> None:
        self._limits = limits
        self._waiting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        make_worker = _ForkingWorker if hasattr(os, "fork") else _SpawnedWorker
        self._worker = make_worker({"tokenizer": tokenizer, "end_ids": list(end_ids), "mib": limits.max_grammar_mib})

    async def ask(self, schemas: Sequence[tuple[str, bool]], grammar: str) -> TrialOutcome:
        """Compile schemas and a grammar in the worker; if the caller is cancelled, the trial ends.

        Args:
            schemas: JSON texts; True for those that must compile.
            grammar: the grammar with all schemas.

        Raises:
            NoTrialError: there are too many trials, or the worker ended twice.
        """
        if self._waiting >= MAX_WAITING:
            raise NoTrialError(f"{MAX_WAITING} forms of answers are being tried already")
        if self._loop is not asyncio.get_running_loop():  # a server that starts again has another one
            self._loop = asyncio.get_running_loop()
            self._quick_lane, self._slow_lane = asyncio.Semaphore(_LANE_TRIALS), asyncio.Semaphore(_LANE_TRIALS)
        seconds, quick_seconds = self._limits.max_grammar_seconds, self._worker.quick_seconds
        trial = {"schemas": list(schemas), "grammar": grammar, "mib": self._limits.max_grammar_mib}
        self._waiting += 1
        try:
            async with self._quick_lane:
                quick = {**trial, "seconds": min(quick_seconds, seconds), "niceness": 0}
                outcome = await self._worker.run(quick)
            if outcome.ended == "time" and seconds > quick_seconds:
                async with self._slow_lane:
                    outcome = await self._worker.run({**trial, "seconds": seconds, "niceness": _SLOW_NICENESS})
            return outcome
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Stop the worker; the next trial starts it again."""
        self._worker.close()


class _ForkingWorker:
    """The worker process, which runs each trial in a fork. For each trial this process makes a pair of sockets, sends
    one of them to the worker, writes the trial to the other, and reads its outcome from there."""

    quick_seconds = QUICK_SECONDS

    def __init__(self, setup: dict[str, Any]) -> None:
        self._setup = setup
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_process: Callable[[], object] = lambda: None

    async def run(self, trial: dict[str, Any]) -> TrialOutcome:
        for _ in range(2):  # perhaps the worker ended before this trial: a new one answers
            control = await asyncio.to_thread(self._control_of_running)
            answer = await self._exchange(control, trial)
            if answer:
                return TrialOutcome(**json.loads(answer))
            await asyncio.to_thread(self._end, control)
        raise NoTrialError("the process that tries grammars has ended")

    def close(self) -> None:
        with self._lock:
            self._kill_process()
            self._process = None

    def _control_of_running(self) -> socket.socket:
        """Return the socket through which the process takes sockets of trials; start it if it does not run."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._kill_process()  # closes its socket
                self._process = None
            if self._process is None:
                self._control, worker_end = socket.socketpair()
                with worker_end:
                    self._process = start_child(
                        [sys.executable, "-m", f"{__package__}.trial_worker"],
                        stdin=worker_end,
                        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},  # a fork has one thread
                    )
                self._kill_process = weakref.finalize(self, _kill, self._process, self._control)
                setup = json.dumps(self._setup).encode()
                with suppress(OSError):  # it has ended: the exchange finds that out
                    self._control.sendall(len(setup).to_bytes(8, "big") + setup)
            return self._control

    def _end(self, control: socket.socket) -> None:
        """End the process of this socket, unless another one has replaced it."""
        with self._lock:
            if control is self._control:
                self._kill_process()

    async def _exchange(self, control: socket.socket, trial: dict[str, Any]) -> bytes:
        """Return the outcome of a trial; empty if the process has ended."""
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            with theirs:
                socket.send_fds(control, [b"+"], [theirs.fileno()])
            writer.write(json.dumps(trial).encode() + b"\n")
            return await reader.read()
        except OSError:
            return b""
        finally:
            writer.close()


class _SpawnedWorker:
    """The worker process on a system without fork, such as Windows: it compiles one trial after the other itself, and
    the clock bounds their time."""

    quick_seconds = math.inf

    def __init__(self, setup: dict[str, Any]) -> None:
        folder = tempfile.mkdtemp(prefix="mini-agentic-rl-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        file = Path(folder) / "setup.json"
        file.write_text(json.dumps(setup), encoding="utf-8")
        self._process = DeadlineProcess(f"{__package__}.trial_worker", str(file))

    async def run(self, trial: dict[str, Any]) -> TrialOutcome:
        try:
            answer = await asyncio.to_thread(self._process.ask, trial, _CLOCK_SHARE * trial["seconds"])
        except LateError:
            return TrialOutcome(ended="time")
        except EndedError:
            return TrialOutcome(ended="memory")
        except NotReadyError as error:
            raise NoTrialError(str(error)) from error
        return TrialOutcome(**answer)

    def close(self) -> None:
        self._process.close()


def _kill(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.kill()
    process.wait()
