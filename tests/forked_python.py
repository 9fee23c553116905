"""`python WORDS...` in a process that is forked from the one of `forking.py`, with the files and status of this one:
`python forked_python.py … WORDS...`, where the words begin with `-c`, `-m` or a script.

`--for SOCKET` before them names the process that forks; a SIGINT or a SIGTERM is then handed on to the fork. Without it
the environment names that process, and the fork ends when this one does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence

SOCKET = "TEST_FORKING"
HANDED_ON = (signal.SIGINT, signal.SIGTERM)


def main(words: Sequence[str]) -> int:
    """Run it to its end; return its exit status."""
    address, hands_on = os.environ.get(SOCKET, ""), words[0] == "--for"
    if hands_on:
        address, words = words[1], words[2:]
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)  # until there is a fork
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the process whose files these are
    at = next(place for place, word in enumerate(words) if word in ("-c", "-m") or not word.startswith("-"))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    asked = {"words": words[at:], "environment": dict(os.environ), "folder": os.getcwd()}
    data = json.dumps(asked).encode() + b"\n"
    sent = socket.send_fds(connection, [data], [0, 1, 2])
    connection.sendall(data[sent:])
    with connection.makefile("rb", buffering=0) as told:
        pid = int(told.readline())
        if hands_on:
            for number in HANDED_ON:
                signal.signal(number, lambda number, _: hand_on(pid, number))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
        status = int(told.readline() or 1)
    if status < 0 and hands_on:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return abs(status)


def hand_on(pid: int, number: int) -> None:
    """Send a signal to the fork, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
