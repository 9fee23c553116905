"""Servers in processes of their own, and a neighbour: a client that sends small requests beside the attacker.

The neighbour is a process too (`asking.py`), so that it never waits for the attacker's interpreter. It asks the
attacked server and an idle one, the control: what the control waits is the machine's part of every wait.
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

from processes import PythonProcess

from .servers import STORE


@dataclass(frozen=True)
class Served:
    """A server that runs in another process: the first line that it printed, usually its URL."""

    url: str
    pid: int


@contextlib.contextmanager
def served(program: str, *arguments: str) -> Iterator[Served]:
    """Run Python source that prints its URL, and then waits for the end of its input."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "served.py"
        script.write_text(program, encoding="utf-8")
        with PythonProcess(script, *arguments, held=True) as process:
            yield Served(process.wait_for_line(), process.pid)
            assert process.is_alive, f"the server ended: {process.stderr[-3000:]}"


@functools.cache
def idle_server() -> str:
    """Return the URL of the control's server, which runs as long as this process."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return f"{stack.enter_context(served(STORE)).url}/v1/agl/health"


class Neighbour:
    """Send one small request again and again, and keep the longest wait for its answer.

    Args:
        url: address of the request.
        pause_s: seconds between two requests.
        bodies: sent in turn as JSON; without any the request is a GET.
    """

    def __init__(self, url: str, pause_s: float = 0.01, *, bodies: Sequence[object] = ()) -> None:
        targets = [{"url": url, "bodies": list(bodies)}, {"url": idle_server(), "bodies": []}]
        self._setup = {"targets": targets, "pause_s": pause_s}

    def __enter__(self) -> Neighbour:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(Path(__file__).with_name("asking.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._send(self._setup)
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def forget(self) -> None:
        """Forget the waits so far: making a large body is no part of an attack."""
        self._report()

    def longest(self) -> tuple[float, float]:
        """Return the longest waits for the attacked server and for the control since the last call, in seconds.

        It waits for at least one answer of the attacked server.

        Raises:
            AssertionError: a request failed.
        """
        answers, neighbour_s, control_s = 0, 0.0, 0.0
        while not answers:
            time.sleep(0.001)
            (waited_s, answers, failures), (idle_s, _, idle_failures) = self._report()
            assert not failures, failures
            assert not idle_failures, f"the control: {idle_failures}"
            neighbour_s, control_s = max(neighbour_s, waited_s), max(control_s, idle_s)
        return neighbour_s, control_s

    def _report(self) -> list[tuple[float, int, list[str]]]:
        self._send(None)
        assert self._process.stdout is not None
        report: list[tuple[float, int, list[str]]] = json.loads(self._process.stdout.readline())
        return report

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
