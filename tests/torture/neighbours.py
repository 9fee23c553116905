"""A server in a process of its own, and a client beside the attacker that asks it small things all the while."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from warm import WarmProcess

LONGEST_WAIT_S = 2.5
"""Ten times what a neighbour is promised: a test machine that others use too does not break it."""


@dataclass(frozen=True)
class Served:
    """A server that runs in another process."""

    url: str
    pid: int


@contextlib.contextmanager
def served(program: str, *arguments: str) -> Iterator[Served]:
    """Run Python source that prints the URL it serves, and then waits for the end of its input."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "served.py"
        script.write_text(program, encoding="utf-8")
        with WarmProcess(script, *arguments, held=True) as process:
            yield Served(process.wait_for_line(), process.pid)
            assert process.is_alive, f"the server ended: {process.stderr[-3000:]}"


class Neighbour:
    """Ask for one small thing again and again, and keep the longest wait for its answer, in seconds.

    Args:
        url: what is asked.
        pause_s: seconds between two questions.
        body: sent as JSON; without one it is a GET.
    """

    def __init__(self, url: str, pause_s: float = 0.01, *, body: object = None) -> None:
        self._url = url
        self._body = body
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._lock = threading.Lock()
        self._longest = 0.0
        self._failures: list[str] = []

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def forget(self) -> None:
        """Forget the waits so far: making a large body holds up this thread too."""
        with self._lock:
            self._longest = 0.0

    def longest(self) -> float:
        """Return the longest wait since the last time, in seconds.

        Raises:
            AssertionError: an answer was none, or the wait was longer than `LONGEST_WAIT_S`.
        """
        with self._lock:
            longest, self._longest = self._longest, 0.0
            failures, self._failures = self._failures, []
        assert not failures, failures[:3]
        assert longest < LONGEST_WAIT_S, f"a neighbour waited {longest:.2f} s"
        return longest

    def _ask(self) -> None:
        with httpx.Client(timeout=60) as http:
            while not self._stop.wait(self._pause_s):
                began = time.monotonic()
                try:
                    method = "GET" if self._body is None else "POST"
                    status = http.request(method, self._url, json=self._body).status_code
                    failure = "" if status == 200 else f"status {status}"
                except httpx.HTTPError as error:
                    failure = repr(error)
                with self._lock:
                    self._longest = max(self._longest, time.monotonic() - began)
                    if failure:
                        self._failures.append(failure)
