"""`python -c CODE` in a process that is forked from the one of `forking.py`, with the files and the status of this one:
`python forked_python.py … -c CODE`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

SOCKET = "TEST_FORKING"


def main() -> int:
    """Run it to its end; return its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the process whose files these are
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[SOCKET])
    asked = {"code": sys.argv[-1], "environment": dict(os.environ), "folder": os.getcwd()}
    data = json.dumps(asked).encode() + b"\n"
    sent = socket.send_fds(connection, [data], [0, 1, 2])
    connection.sendall(data[sent:])
    with connection.makefile("rb", buffering=0) as told:
        told.readline()
        return abs(int(told.readline() or 1))


if __name__ == "__main__":
    sys.exit(main())
