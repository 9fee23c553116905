"""A process of its own for work that may hang or die: it answers questions, each within a deadline.

    helper = DeadlineProcess("package.worker", "argument")          # here
    helper.ask([1, 2], limit=5.0)

    if __name__ == "__main__":                                  # package/worker.py
        serve_answers(lambda: sum)

Questions and answers are JSON values, one a line. The process is started by the first question, kept, and killed when
an answer is late; no signal or thread could end every computation in the process of the asker.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from .children import start_child

START_LIMIT: Final = 60.0
"""Seconds for a process to come up."""
_EXIT_LIMIT: Final = 1.0
"""Seconds from the end of a process's output to its own."""


class DeadlineProcessError(RuntimeError):
    """Report that there is no answer."""


class NotReadyError(DeadlineProcessError):
    """Report that the process did not come up; the text says why."""


class LateError(DeadlineProcessError):
    """Report that the answer took longer than its limit; the process was killed."""


class EndedError(DeadlineProcessError):
    """Report that the process ended instead of answering."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the process ended with status {status}")
        self.status = status
        """Exit status of the process; minus the number of a signal."""


class DeadlineProcess:
    """A process `python -m module arguments…`, which calls `serve_answers`, as its asker sees it.

    After any error the next question starts a new process. Threads may share one object; their questions take turns.
    The process ends with the object, and with the interpreter, however that ends.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._ending: weakref.finalize[Any, Any] | None = None

    @property
    def is_up(self) -> bool:
        """True if the next question need not start the process."""
        process = self._process
        return process is not None and process.poll() is None

    def start(self) -> None:
        """Start the process, unless it is up.

        Raises:
            NotReadyError: it does not come up.
        """
        with self._lock:
            if not self.is_up:
                self._start()

    def ask(self, question: Any, limit: float) -> Any:
        """Return the answer to a question, after at most `limit` seconds from its turn on and the process being up.

        Raises:
            NotReadyError: the process does not come up.
            LateError: the answer took longer.
            EndedError: the process ended instead.
        """
        line = json.dumps(question)
        with self._lock:
            if not self.is_up:
                self._start()
            return self._exchange(line, limit)

    def close(self) -> None:
        """End the process; the next question starts one again."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        self._end()
        self._process = start_child(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self._ending = weakref.finalize(self, _kill, self._process)
        name = " ".join(self._command[1:3])
        try:
            reason = self._exchange(None, START_LIMIT)
        except LateError:
            raise NotReadyError(f"{name} was not ready within {START_LIMIT:g} s") from None
        except EndedError as error:
            raise NotReadyError(f"{name} ended with status {error.status} before it was ready") from None
        if reason is not None:
            self._end()
            raise NotReadyError(reason)

    def _end(self) -> None:
        if self._ending is not None:
            self._ending()
        self._process, self._ending = None, None

    def _exchange(self, line: str | None, limit: float) -> Any:
        """Return the answer to a line; without one, the first line that the process writes."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("the process is not running")
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit, stop)
        timer.start()
        answer = ""
        try:
            if line is not None:
                process.stdin.write(line + "\n")
                process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:  # it died before it had read the line
            pass
        except BaseException:  # interrupted: an answer that nobody has read must not be taken for the next one
            self._end()
            raise
        finally:
            timer.cancel()
            timer.join()
        if late.is_set():
            self._end()
            raise LateError(f"no answer within {limit:g} s")
        if not answer.endswith("\n"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_LIMIT)
            self._end()
            raise EndedError(process.returncode)
        return json.loads(answer)


def serve_answers(prepare: Callable[[], Callable[[Any], Any]]) -> None:
    """Answer questions until there are no more; the process calls this.

    Args:
        prepare: returns the function that answers a question. A `NotReadyError` that it raises is raised in the asker.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print is no answer

    def tell(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        answer = prepare()
    except NotReadyError as error:
        tell(str(error))
        return
    tell(None)
    for line in sys.stdin:
        tell(answer(json.loads(line)))


def confine(max_memory_mib: int) -> None:
    """From here on this process writes no file and, on Linux, takes at most so much more memory; on Windows, nothing is
    bounded."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        import psutil

        allowed = psutil.Process().memory_info().vms + (max_memory_mib << 20)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # what a dead process has not read is lost
                stream.close()
