"""Send small requests to several servers in a process of its own, and report the longest waits.

    python asking.py

The first line of standard input is the setup as JSON: `pause_s` and `targets`, each {"url", "bodies"}. One
thread per target posts its bodies in turn, or sends GET without any.
Each further line is answered by a JSON line: for each target [longest wait in seconds, answers, first failures] since
the last line. A running request is waited for, so that its wait is part of the report.

Only the standard library is imported, so that the process starts within milliseconds.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

_AHEAD = 2
"""Niceness below the parent's, where the system allows it: the wait for a processor is not the server's."""


class Asker:
    """Sends requests to one server from its own thread."""

    def __init__(self, target: dict[str, Any], pause_s: float) -> None:
        parts = urlsplit(target["url"])
        self._address = (parts.hostname or "", parts.port or 80)
        self._path = parts.path or "/"
        self._bodies = [json.dumps(body).encode() for body in target["bodies"]]
        self._pause_s = pause_s
        self._asking = threading.Lock()
        self._waits, self._failures = list[float](), list[str]()
        self._connection: http.client.HTTPConnection | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def report(self) -> list[Any]:
        """Return the waits since the last report, after the running request has ended."""
        with self._asking:
            report = [max(self._waits, default=0.0), len(self._waits), self._failures[:3]]
            self._waits, self._failures = [], []
        return report

    def _run(self) -> None:
        for number in itertools.count():
            with self._asking:
                began = time.monotonic()
                try:
                    self._ask(number)
                except (AssertionError, OSError, http.client.HTTPException) as error:
                    self._failures.append(repr(error))
                    self._hang_up()
                self._waits.append(time.monotonic() - began)
            time.sleep(self._pause_s)

    def _ask(self, number: int) -> None:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*self._address, timeout=60)
        if self._bodies:
            body = self._bodies[number % len(self._bodies)]
            self._connection.request("POST", self._path, body, {"Content-Type": "application/json"})
        else:
            self._connection.request("GET", self._path)
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status == 200, f"status {answer.status}: {text[:300]!r}"
        if answer.will_close:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - _AHEAD)
    setup = json.loads(sys.stdin.readline())
    askers = [Asker(target, setup["pause_s"]) for target in setup["targets"]]
    for _ in sys.stdin:
        print(json.dumps([asker.report() for asker in askers]), flush=True)
