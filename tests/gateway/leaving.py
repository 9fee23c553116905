"""A client that goes away in the middle of its answer, over a plain socket."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit


def ask_and_leave(endpoint: str, body: dict, *, begun: Callable[[], object], seconds: float = 0.3) -> bytes:
    """Ask for a chat completion and hang up a while after `begun` is true; what had come by then."""
    parts = urlsplit(f"{endpoint}/chat/completions")
    content = json.dumps(body).encode()
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.sendall(
            f"POST {parts.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        end = time.monotonic() + 60
        while not begun():
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(seconds)
        connection.setblocking(False)
        try:
            return connection.recv(2**20)
        except BlockingIOError:
            return b""
