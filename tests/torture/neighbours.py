"""A server in a process of its own, and a neighbour: a client that asks small things beside the attacker.

The neighbour is a process of its own too (`asking.py`), so that it never waits for the attacker's interpreter. It asks
two servers: the attacked one, and one that nobody else asks, which is the control. What the control waits is what this
machine makes everybody wait just then, for the attacker and the server share its processors with all that runs on it.
Both are told; nothing is taken off.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from processes import PythonProcess

from .conftest import SIZE
from .servers import STORE

PROMISED_S: Final = 0.25
"""The longest that a neighbour waits for its answer, as docs/reliability.md promises."""
LONGEST_WAIT_S: Final = 2.5
"""Ten times that, allowed where a part of the suite is tried: on a machine that the rest of it keeps busy."""
_CONTROLS: Final = 3.0
"""A wait of the neighbour is the machine's if the control waited a third of it: between a request and its answer
several threads have to get a processor, and each waits."""


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
        with PythonProcess(script, *arguments, held=True) as process:
            yield Served(process.wait_for_line(), process.pid)
            assert process.is_alive, f"the server ended: {process.stderr[-3000:]}"


@functools.cache
def idle_server() -> Served:
    """Return a server that only controls ask, one for this process and as long as it lives."""
    kept = contextlib.ExitStack()
    atexit.register(kept.close)
    server = kept.enter_context(served(STORE))
    return Served(f"{server.url}/v1/agl/health", server.pid)


@dataclass(frozen=True)
class Waits:
    """The longest waits of a time."""

    neighbour_s: float
    """That for the attacked server, in seconds."""
    control_s: float
    """That for a server with nothing else to do."""

    def check(self, promised_s: float | None = None) -> None:
        """Check that the attacked server kept what is promised.

        Raises:
            AssertionError: the neighbour waited longer, and the machine does not explain it.
        """
        promised_s = PROMISED_S if promised_s is None else promised_s
        allowed = max(promised_s, LONGEST_WAIT_S if SIZE < 1 else _CONTROLS * self.control_s)
        assert self.neighbour_s <= allowed, (
            f"a neighbour waited {self.neighbour_s:.2f} s, and the control {self.control_s:.2f} s"
        )


class Neighbour:
    """Ask for one small thing again and again, and keep the longest wait for its answer.

    Args:
        url: what is asked.
        pause_s: seconds between two questions.
        bodies: sent as JSON, in turns; without any it is a GET.
        fresh: over a new connection each time.
    """

    def __init__(self, url: str, pause_s: float = 0.01, *, bodies: Sequence[object] = (), fresh: bool = False) -> None:
        targets = [
            {"url": url, "bodies": list(bodies), "fresh": fresh},
            {"url": idle_server().url, "bodies": [], "fresh": fresh},
        ]
        self._setup = {"targets": targets, "pause_s": pause_s}

    def __enter__(self) -> Neighbour:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(Path(__file__).with_name("asking.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._say(self._setup)
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def forget(self) -> None:
        """Forget the waits so far: making a large body is no part of an attack."""
        self._told()

    def longest(self) -> Waits:
        """Return the longest waits since the last time, once somebody was answered in it.

        Raises:
            AssertionError: an answer was none.
        """
        answers, neighbour_s, control_s = 0, 0.0, 0.0
        while not answers:
            time.sleep(0.001)
            (waited, answers, failures), (idle_waited, _, idle_failures) = self._told()
            assert not failures, failures
            assert not idle_failures, f"the control: {idle_failures}"
            neighbour_s, control_s = max(neighbour_s, waited), max(control_s, idle_waited)
        return Waits(neighbour_s, control_s)

    def _told(self) -> list[tuple[float, int, list[str]]]:
        self._say(None)
        assert self._process.stdout is not None
        told: list[tuple[float, int, list[str]]] = json.loads(self._process.stdout.readline())
        return told

    def _say(self, what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
