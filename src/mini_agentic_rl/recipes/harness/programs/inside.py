"""The first program in a sandbox: forwards the gateway's port, runs the command, and exits with its exit code.

    inside.py --measured --processes 256 --relay 8000 /sandbox/gateway.sock -- claude -p "Mend it"

In a sandbox that only has a loopback, a server listens there on the gateway's port and forwards every connection to a
Unix socket of the gateway. `--measured` refuses memory that the supervisor cannot measure.
"""

from __future__ import annotations

import importlib
import os
import resource
import socket
import subprocess
import sys
import threading
from typing import Final

_CHUNK: Final = 1 << 16
_SIGNALLED: Final = 128


def main(arguments: list[str]) -> int:
    """Run the command of the arguments and return its exit code, or 128 plus the number of its signal."""
    place = arguments.index("--")
    options, command = arguments[:place], arguments[place + 1 :]
    if "--relay" in options:
        at = options.index("--relay")
        server = socket.create_server(("127.0.0.1", int(options[at + 1])), backlog=128)
        threading.Thread(target=_accept, args=(server, options[at + 2]), daemon=True).start()
    processes = int(options[options.index("--processes") + 1]) if "--processes" in options else None
    if "--measured" in options:
        sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        seccomp = importlib.import_module("programs.seccomp")

    def bound() -> None:
        if "--measured" in options and seccomp.is_known():
            seccomp.restrict(only_tcp=False)
        if processes is not None:
            resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))

    try:
        status = subprocess.call(command, preexec_fn=bound)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    return status if status >= 0 else _SIGNALLED - status


def _accept(server: socket.socket, path: str) -> None:
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_carry, args=(connection, path), daemon=True).start()


def _carry(connection: socket.socket, path: str) -> None:
    """Carry bytes both ways until both sides have ended."""
    outside = socket.socket(socket.AF_UNIX)
    with connection, outside:
        try:
            outside.connect(path)
        except OSError:
            return
        back = threading.Thread(target=_copy, args=(outside, connection), daemon=True)
        back.start()
        _copy(connection, outside)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # the other side has gone
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
