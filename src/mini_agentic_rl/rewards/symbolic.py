"""Equality of mathematical expressions, in bounded time.

math-verify does the comparing, in a helper process that is started on first use, kept, and killed when a comparison
takes too long: no limit on the text could keep computer algebra from running for ever, and no signal reaches it off
the main thread. Answers are remembered.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import re
import subprocess
import sys
import threading

logger = logging.getLogger(__name__)

TIME_LIMIT = 5.0
"""Seconds for one comparison."""
START_LIMIT = 60.0
"""Seconds for the helper process to come up."""
MAX_LENGTH = 300
"""Characters of an expression; a longer one equals nothing."""

_MATHEMATICAL = re.compile(r"[\d\\+*/^=<>]|^\W*[A-Za-z]\W*$|\b(?:pi|sqrt|sin|cos|tan|log|ln|exp|inf)\b")


class SymbolicError(RuntimeError):
    """The helper process cannot be used."""


def equivalent(predicted: str, gold: str) -> bool:
    """Whether two expressions (plain text or LaTeX) are equal as mathematics.

    False where either is no expression, is longer than `MAX_LENGTH`, or takes longer than `TIME_LIMIT` (logged).

    Raises:
        SymbolicError: the helper process cannot be started, or died of something else than the time limit.
    """
    if max(len(predicted), len(gold)) > MAX_LENGTH or not (
        _MATHEMATICAL.search(predicted) and _MATHEMATICAL.search(gold)
    ):
        return False
    return _remembered(predicted, gold)


class _Helper:
    """The helper process, one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, predicted: str, gold: str) -> bool:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            reply = self._exchange(json.dumps([predicted, gold]), TIME_LIMIT)
            if reply is None:
                logger.warning("comparing %r with %r took over %.0f s; it counts as wrong", predicted, gold, TIME_LIMIT)
                return False
            return reply == "true"

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.symbolic_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        if self._exchange(json.dumps(["1", "1"]), START_LIMIT) != "true":
            raise SymbolicError("the process that compares expressions does not start; is math-verify installed?")

    def _exchange(self, line: str, limit: float) -> str | None:
        """The reply to one line; None when it took longer than `limit` seconds, after which the process is gone."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise SymbolicError("the process that compares expressions is not running")
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit, stop)
        timer.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            reply = process.stdout.readline().strip()
        except OSError:
            reply = ""
        finally:
            timer.cancel()
        if reply:
            return reply
        code = process.wait()
        if late.is_set():
            return None
        raise SymbolicError(f"the process that compares expressions ended with status {code} on {line[:200]}")


_helper = _Helper()
atexit.register(_helper.close)


@functools.lru_cache(maxsize=10_000)
def _remembered(predicted: str, gold: str) -> bool:
    return _helper.ask(predicted, gold)
