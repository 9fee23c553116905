"""Store servers that are forked from one process, so that hundreds of them start in no time.

    python forked_servers.py        # one file or URL a line of its input; a server for each, as `agl store` starts it

Each tells its process id before what the command says. A killed one is reaped at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from mini_agentic_rl.commands.store_server import ServeStoreSettings, serve_store


class ForkedServers:
    """The process that forks them, as a test sees it; a context manager that ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> ForkedServers:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def start(self, place: Path | str) -> tuple[int, str]:
        """Start a server on a file or a database; return its process id and its address.

        Raises:
            AssertionError: it did not start.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{place}\n")
        self._process.stdin.flush()
        pid = 0
        for line in self._process.stdout:
            if line.startswith("pid "):
                pid = int(line.split()[1])
            if not pid:  # what is left of the words of the one before
                continue
            assert not line.startswith("ended "), f"the server on {place} did not start"
            for word in line.split():
                if word.startswith("http://"):
                    return pid, word
        raise AssertionError("the process that forks the servers has ended")


def _serve(place: str) -> None:
    """Serve one place in a process of its own, and end it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    print(f"pid {os.getpid()}", flush=True)
    try:
        where = {"url": place} if "://" in place else {"path": Path(place)}
        serve_store(ServeStoreSettings(port=0, **where))
    finally:
        print(f"ended {os.getpid()}", flush=True)
        os._exit(0)


if __name__ == "__main__":
    import mini_agentic_rl.store.http.server
    import mini_agentic_rl.store.sql  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            _serve(line.strip())
