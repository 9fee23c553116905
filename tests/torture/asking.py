"""Ask two servers for small things all the while, from a process of its own, and tell the longest waits.

    python asking.py

The first line of its input is the setup, as JSON: `targets`, each {"url", "bodies", "fresh"}, and `pause_s`. Each
target is asked from a thread of its own: its bodies in turn, as JSON, or a GET where there are none; with `fresh` over
a new connection each time. Every further line is answered by a line with, for each target, [the longest wait since the
last line, in seconds; how many answers came; the first failures]. A question that is under way is waited for, so that
whoever is held up now is told of now.

Only the standard library is imported: this process asks within milliseconds of its start, and has little to do.
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
"""Steps of niceness that it goes before whoever started it, where it may: a wait for the processor here is nobody's."""
_FAILURES = 3


class Asker:
    """Asks one server from a thread of its own."""

    def __init__(self, target: dict[str, Any], pause_s: float) -> None:
        parts = urlsplit(target["url"])
        self._address = (parts.hostname or "", parts.port or 80)
        self._path = parts.path or "/"
        self._bodies = [json.dumps(body).encode() for body in target["bodies"]]
        self._fresh = bool(target["fresh"])
        self._pause_s = pause_s
        self._idle = threading.Condition()
        self._asking = False
        self._longest, self._answers, self._failures = 0.0, 0, list[str]()
        self._connection: http.client.HTTPConnection | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def told(self) -> list[Any]:
        """Return what the waits were since the last time, once no question is under way."""
        with self._idle:
            self._idle.wait_for(lambda: not self._asking)
            told = [self._longest, self._answers, self._failures]
            self._longest, self._answers, self._failures = 0.0, 0, []
        return told

    def _run(self) -> None:
        for number in itertools.count():
            with self._idle:
                self._asking = True
            began = time.monotonic()
            failure = self._ask(number)
            took = time.monotonic() - began
            with self._idle:
                self._longest = max(self._longest, took)
                self._answers += 1
                if failure and len(self._failures) < _FAILURES:
                    self._failures.append(failure)
                self._asking = False
                self._idle.notify_all()
            time.sleep(self._pause_s)

    def _ask(self, number: int) -> str:
        """Ask once, and return what is wrong with the answer."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(*self._address, timeout=60)
            if self._bodies:
                body = self._bodies[number % len(self._bodies)]
                self._connection.request("POST", self._path, body, {"Content-Type": "application/json"})
            else:
                self._connection.request("GET", self._path)
            answer = self._connection.getresponse()
            text = answer.read()
            if self._fresh or answer.will_close:
                self._hang_up()
            return "" if answer.status == 200 else f"status {answer.status}: {text[:300]!r}"
        except (OSError, http.client.HTTPException) as error:
            self._hang_up()
            return repr(error)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def main() -> None:
    """Ask until the input ends."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - _AHEAD)
    setup = json.loads(sys.stdin.readline())
    askers = [Asker(target, setup["pause_s"]) for target in setup["targets"]]
    for _ in sys.stdin:
        print(json.dumps([asker.told() for asker in askers]), flush=True)


if __name__ == "__main__":
    main()
