"""From the form of an answer to a constraint on tokens: tried in another process, then compiled in this one.

The cost of a form is bounded at each step. Its size is checked in `rules`. It is first compiled in a process that the
system kills at `max_grammar_seconds` or `max_grammar_mib` (`trial_worker.py`): in this process a compilation could not
be interrupted, and the limits of the library do not bound it. Twenty patterns that must hold at once take minutes and
all memory. Only then it is compiled here, off the event loop and without the interpreter's lock. The cost of its tokens
is bounded by `StepBudget`.

Quick forms do not wait for slow ones: each trial first gets `QUICK_SECONDS`, and if that was not enough, the full time
in a second lane with a low priority. At most `MAX_WAITING` forms are tried at a time, two in each lane.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from ...http import BadRequestError, OverloadedError
from ...processes import DeadlineProcess, EndedError, LateError, NotReadyError, start_child
from ...tokens import TokenConstraint
from ..render.decoding import Tokenizer
from ..settings import GrammarLimits
from .grammar import Grammar, GrammarError, UnreadableTokenizerError, Vocabulary
from .rules import ANY_OBJECT, AnswerRule, answer_grammar, schema_with_options

logger = logging.getLogger(__name__)

MAX_GRAMMARS: Final = 256
"""Grammars that are kept, the most recently used ones."""
MAX_MIB: Final = 1024
"""Memory of all kept grammars, measured when they were compiled."""
REFUSED_SECONDS: Final = 300.0
"""Seconds for which a refusal is repeated without another trial."""
_MAX_REFUSALS: Final = 4096
_ENDED: Final = {
    "time": "compiling it takes more than {0.max_grammar_seconds:g} s of processor time (max_grammar_seconds)",
    "memory": "compiling it takes more than {0.max_grammar_mib} MiB of memory (max_grammar_mib)",
}
_PATIENCE: Final = 60.0
"""Seconds to wait for an outcome beside its CPU time, on a busy machine."""
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


@dataclass
class _Job:
    """A form that is being compiled, and the number of its callers."""

    task: asyncio.Task[Grammar]
    waiting: int = 0


class ConstraintCompiler:
    """Compiles forms, and keeps grammars and refusals, the most recently used ones. Used from one event loop at a time.

    The process that tries forms starts with the first of them, and ends with this object.

    Args:
        tokenizer: the model's tokenizer. It is read here, because reading it blocks other threads for up to a second.
        end_ids: ids that end an answer, the preferred one first.
        limits: limits of compiling a form.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int], limits: GrammarLimits | None = None) -> None:
        self._limits = limits or GrammarLimits()
        self._grammars: OrderedDict[bytes, tuple[Grammar, float]] = OrderedDict()
        """Each with its memory in MiB."""
        self._mib = 0.0
        self._refusals: OrderedDict[bytes, tuple[BadRequestError, float]] = OrderedDict()
        """Each with the time until which it is repeated."""
        self._jobs: dict[bytes, _Job] = {}
        self._trials = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        # Quick forms do not wait for slow ones, here too.
        self._quick = ThreadPoolExecutor(1, "grammar")
        self._slow = ThreadPoolExecutor(1, "large-grammar")
        self._unreadable = ""
        """Why the tokenizer cannot be read; empty if it can."""
        try:
            self._vocabulary = Vocabulary(tokenizer, end_ids)
        except UnreadableTokenizerError as error:
            self._unreadable = str(error)
            logger.info("answers cannot be constrained: llguidance cannot read the tokenizer: %s", error)
            return
        make_worker = _ForkingWorker if hasattr(os, "fork") else _SpawnedWorker
        setup = {"tokenizer": self._vocabulary.definition, "end_ids": self._vocabulary.ends}
        self._worker = make_worker({**setup, "mib": self._limits.max_grammar_mib})

    async def compile(self, rule: AnswerRule) -> Callable[[], TokenConstraint] | None:
        """Return a function that begins a constraint; None for strict tools if the tokenizer cannot be read.

        The work stops when all callers for a form are cancelled.

        Raises:
            BadRequestError: a schema cannot be compiled, or not within the limits, or the tokenizer cannot be read;
                `param` names the field.
            OverloadedError: too many forms are being compiled.
        """
        if self._unreadable and rule.opening is not None:
            return None
        if self._unreadable:
            raise BadRequestError(
                f"{rule.field}: the answer cannot be constrained, because the model's tokenizer cannot be read: "
                f"{self._unreadable}",
                param=rule.field,
                code="unsupported_tokenizer",
            )
        key = hashlib.blake2b(repr(rule).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key in self._grammars:
            self._grammars.move_to_end(key)
            return self._grammars[key][0].begin
        refusal, until = self._refusals.get(key, (None, 0.0))
        if refusal is not None and time.monotonic() < until:
            raise BadRequestError(refusal.message, param=refusal.param)
        # Wait for the form together with all other callers for it.
        loop = asyncio.get_running_loop()
        job = self._jobs.get(key)
        if job is None or job.task.get_loop() is not loop:
            job = self._jobs[key] = _Job(loop.create_task(self._make(key, rule)))
            job.task.add_done_callback(partial(self._forget, key))
        job.waiting += 1
        try:
            return (await asyncio.shield(job.task)).begin
        finally:
            job.waiting -= 1
            if not job.waiting:  # the next caller must not be cancelled with this job
                self._forget(key, job.task)
                job.task.cancel()

    def close(self) -> None:
        """Stop the process that tries grammars; the next form starts it again."""
        if not self._unreadable:
            self._worker.close()

    def _forget(self, key: bytes, task: asyncio.Task[Grammar]) -> None:
        if key in self._jobs and self._jobs[key].task is task:
            del self._jobs[key]

    async def _make(self, key: bytes, rule: AnswerRule) -> Grammar:
        try:
            text, outcome = await self._tried(rule)
            thread = self._quick if outcome.seconds <= QUICK_SECONDS else self._slow
            grammar = await asyncio.get_running_loop().run_in_executor(thread, Grammar, text, self._vocabulary)
        except (GrammarError, BadRequestError) as error:
            message = f"{rule.field}: {error}"
            refusal = error if isinstance(error, BadRequestError) else BadRequestError(message, param=rule.field)
            self._refusals.pop(key, None)
            self._refusals[key] = (refusal, time.monotonic() + REFUSED_SECONDS)
            if len(self._refusals) > _MAX_REFUSALS:
                self._refusals.popitem(last=False)
            raise refusal from None
        self._grammars[key] = (grammar, outcome.mib)
        self._mib += outcome.mib
        while len(self._grammars) > MAX_GRAMMARS or (self._mib > MAX_MIB and len(self._grammars) > 1):
            self._mib -= self._grammars.popitem(last=False)[1][1]
        return grammar

    async def _tried(self, rule: AnswerRule) -> tuple[str, TrialOutcome]:
        """Return the grammar of a form and the outcome of its trial. Arguments of calls that are not strict become any
        object if the library cannot compile their schemas."""

        def write() -> tuple[list[tuple[str, bool]], str]:
            schemas = [(schema_with_options(value), value is rule.value or value.strict) for value in rule.values]
            return schemas, answer_grammar(rule, self._vocabulary.special, self._vocabulary.ends)

        schemas, text = await asyncio.get_running_loop().run_in_executor(self._quick, write)
        patience = _PATIENCE + 20 * self._limits.max_grammar_seconds
        try:
            outcome = await asyncio.wait_for(self._try(schemas, text), patience)
        except (NoTrialError, asyncio.TimeoutError) as error:
            logger.warning("the form of an answer could not be tried: %s", str(error) or "no answer in time")
            raise OverloadedError(
                f"The server is busy: {str(error) or 'it compiles too much'}. Try again shortly."
            ) from error
        if outcome.ended:
            raise GrammarError(_ENDED[outcome.ended].format(self._limits))
        if outcome.refused is not None:
            index, reason = outcome.refused
            field = rule.field if index < 0 else rule.values[index].field
            raise BadRequestError(f"{field}: {reason}", param=field)
        if not outcome.loosened:
            return text, outcome
        first = 0 if rule.value is None else 1
        calls = [
            replace(call, arguments=replace(call.arguments, schema=ANY_OBJECT)) if index in outcome.loosened else call
            for index, call in enumerate(rule.calls, first)
        ]
        return await self._tried(replace(rule, calls=tuple(calls)))

    async def _try(self, schemas: Sequence[tuple[str, bool]], grammar: str) -> TrialOutcome:
        """Compile schemas (with True for those that must compile) and a grammar in the worker. If the caller is
        cancelled, the trial ends. Raises NoTrialError."""
        if self._trials >= MAX_WAITING:
            raise NoTrialError(f"{MAX_WAITING} forms of answers are being tried already")
        if self._loop is not asyncio.get_running_loop():  # a server that starts again has another one
            self._loop = asyncio.get_running_loop()
            self._quick_lane, self._slow_lane = asyncio.Semaphore(_LANE_TRIALS), asyncio.Semaphore(_LANE_TRIALS)
        seconds, quick_seconds = self._limits.max_grammar_seconds, self._worker.quick_seconds
        trial = {"schemas": schemas, "grammar": grammar, "mib": self._limits.max_grammar_mib}
        self._trials += 1
        try:
            async with self._quick_lane:
                quick = {**trial, "seconds": min(quick_seconds, seconds), "niceness": 0}
                outcome = await self._worker.run(quick)
            if outcome.ended == "time" and seconds > quick_seconds:
                async with self._slow_lane:
                    outcome = await self._worker.run({**trial, "seconds": seconds, "niceness": _SLOW_NICENESS})
            return outcome
        finally:
            self._trials -= 1


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
        self._process = DeadlineProcess(f"{__package__}.trial_worker", "spawned", setup=setup)

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
