"""Thousands of connections that send little and slowly, and a client beside them that only wants an answer."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from mini_agentic_rl.http.connections import most_connections

from .conftest import Attack
from .neighbours import Neighbour, Served, served
from .servers import CHAT, GATEWAY, STORE

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SENT = {
    "nothing": b"",
    "half a head": HEAD[:20],
    "a head without an end": HEAD,
    "half a body": HEAD + b"Content-Length: 100\r\n\r\n{",
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n64\r\n{",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(GATEWAY) as running:
        yield running


@pytest.fixture
def descriptors() -> Iterator[int]:
    """How many descriptors this process may open; as many as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def connections(attack: Attack, url: str, count: int, sent: bytes, pause_s: float = 0.0) -> Iterator[None]:
    """Hold connections that have sent some bytes and send no more."""
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with contextlib.ExitStack() as stack:
        for number in range(count):
            with attack.attempt(number, limit_s=30):
                connection = stack.enter_context(socket.create_connection(address, timeout=30))
                with contextlib.suppress(ConnectionError):
                    connection.sendall(sent)
            time.sleep(pause_s)
        yield


@pytest.mark.parametrize("sent", SENT)
def test_slow_connections(attack, server, descriptors, sent):
    count = min(attack.times(10_000), descriptors - 500)
    with (
        Neighbour(f"{server.url}/health", pause_s=0.02) as neighbour,
        attack.memory_of(server.pid),
        # a pause, since their number counts here, and not how many come at once
        connections(attack, server.url, count, SENT[sent], pause_s=0.001),
    ):
        with attack.attempt("an honest client among them", limit_s=30):
            answer = httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=30)
            assert answer.status_code == 200
        with attack.attempt("descriptors are left"):
            assert psutil.Process(server.pid).num_fds() < most_connections() + 200
            attack.check_waits(neighbour)


def test_slow_connections_where_descriptors_are_few(attack):
    """As many connections as the server may have files: it has files left for its work all the same."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n" + STORE
    with served(limited) as server, connections(attack, server.url, attack.times(5000), HEAD):
        with attack.attempt("an honest client among them", limit_s=30):
            assert httpx.get(f"{server.url}/v1/agl/statistics", timeout=30).status_code == 200
        with attack.attempt("descriptors are left"):
            assert psutil.Process(server.pid).num_fds() < 200
