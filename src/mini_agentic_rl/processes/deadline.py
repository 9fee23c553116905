"""A helper process for work that may hang, crash or take all memory: it answers questions, each within a deadline.

    helper = DeadlineProcess("package.worker", "argument")          # here
    helper.ask([1, 2], limit=5.0)

    if __name__ == "__main__":                                  # package/worker.py
        serve_answers(lambda: sum)

Questions and answers are JSON values, one a line. The process is started by the first question, kept, and killed when
an answer is late; within one process neither a signal nor a thread could end every computation.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from .children import start_child
from .computer import memory_to_watch, resident_bytes

START_LIMIT: Final = 60.0
"""Seconds for a process to come up."""
_EXIT_LIMIT: Final = 1.0
"""Seconds from the end of a process's output to its own."""
_MEMORY_CHECK_SECONDS: Final = 0.05


class NotReadyError(RuntimeError):
    """The process did not come up; the message says why."""


class LateError(RuntimeError):
    """The answer took longer than its limit; the process was killed."""


class EndedError(RuntimeError):
    """The process ended instead of answering."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the process ended with status {status}")
        self.status = status
        """Exit status of the process; minus the number of a signal."""


class DeadlineProcess:
    """A process `python -m module arguments…`, which calls `serve_answers`.

    After any error the next question starts a new process. Threads may share one object; their questions take turns.
    The process ends with the object, and with the interpreter, however that ends.

    Args:
        module: the module that is run.
        arguments: what follows it on the command line.
        setup: a JSON value that `prepare` reads as the first line of its input; None writes none.
    """

    def __init__(self, module: str, *arguments: str, setup: Any = None) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._setup = None if setup is None else json.dumps(setup)
        self._max_memory_mib: int | None = None
        """Memory that a question may take, where the process cannot bound it by itself."""
        self._lock = threading.RLock()
        self._process: subprocess.Popen[str] | None = None
        self._ending: weakref.finalize[Any, Any] | None = None

    def ask(self, question: Any, limit: float) -> Any:
        """Return the answer to a question.

        Args:
            question: a JSON value.
            limit: seconds for the answer, once the process is up and the questions before this one are answered.

        Raises:
            NotReadyError: the process does not come up.
            LateError: the answer took longer.
            EndedError: the process ended instead, or was killed because it took too much memory.
        """
        line = json.dumps(question)
        with self._lock:
            self._start()
            return self._exchange(line, limit)

    def close(self) -> None:
        """End the process; the next question starts one again."""
        with self._lock:
            if self._ending is not None:
                self._ending()
            self._process, self._ending = None, None

    def _start(self) -> None:
        """Start the process, unless it is up."""
        # `poll` also returns None for an ended process while another thread reads its exit status.
        if self._process is not None and self._process.poll() is None and resident_bytes(self._process.pid) > 0:
            return
        self.close()
        self._process = start_child(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self._ending = weakref.finalize(self, _kill, self._process)
        self._max_memory_mib = None  # that of the last process is not of the start
        name = " ".join(self._command[1:3])
        try:
            ready = self._exchange(self._setup, START_LIMIT)
        except LateError:
            raise NotReadyError(f"{name} was not ready within {START_LIMIT:g} s") from None
        except EndedError as error:
            raise NotReadyError(f"{name} ended with status {error.status} before it was ready") from None
        if isinstance(ready, str):
            self.close()
            raise NotReadyError(ready)
        self._max_memory_mib = ready

    def _exchange(self, line: str | None, limit: float) -> Any:
        """Return the answer to a line; without one, the first line that the process writes."""
        process = self._process
        assert process is not None
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=lambda: answers.put(_answer(process, line)), daemon=True).start()
        bound = None if self._max_memory_mib is None else self._max_memory_mib << 20
        before = 0 if bound is None else resident_bytes(process.pid)
        end = time.monotonic() + limit
        answer: str | None = None
        try:
            while answer is None:
                left = end - time.monotonic()
                if left <= 0:
                    raise LateError(f"no answer within {limit:g} s")
                with contextlib.suppress(queue.Empty):
                    answer = answers.get(timeout=left if bound is None else min(left, _MEMORY_CHECK_SECONDS))
                if answer is None and bound is not None and resident_bytes(process.pid) - before > bound:
                    process.kill()
        except BaseException:  # late or interrupted: the answer, still unread, must not be taken for the next one
            self.close()
            raise
        if not answer.endswith("\n"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_LIMIT)
            self.close()
            raise EndedError(process.returncode)
        return json.loads(answer)


def _answer(process: subprocess.Popen[str], line: str | None) -> str:
    """Write a line, if any, and return the next line; "" if the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if line is not None:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        return process.stdout.readline()
    except (OSError, ValueError):  # it died before it had read the line, or its streams were closed
        return ""


def serve_answers(prepare: Callable[[], Callable[[Any], Any]]) -> None:
    """Answer questions until there are no more; called in the helper process.

    Args:
        prepare: returns the function that answers a question. A `NotReadyError` that it raises is raised again by the
            question that started the process.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print

    def send(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        answer = prepare()
    except NotReadyError as error:
        send(str(error))
        return
    send(memory_to_watch())
    for line in sys.stdin:
        send(answer(json.loads(line)))


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # the process died before it had read everything
                stream.close()
