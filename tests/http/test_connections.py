"""Connections that hold their request back do not keep others out, and a server outlives its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.samples import until
from mini_agentic_rl.http import (
    Admission,
    AdmittedEndpoint,
    AdmittingServer,
    ApiKeys,
    RequestLimits,
    new_app,
    openai_response,
    read_body,
)
from mini_agentic_rl.http.connections import FRAMING_BYTES, HEAD_BYTES, READ_BYTES, BoundedConnection

HEAD = b"POST /echo HTTP/1.1\r\nHost: localhost\r\n"


@contextlib.contextmanager
def _serving(
    within_seconds: float = 0.5,
    seen: list[weakref.ref[Request]] | None = None,
    limits: RequestLimits | None = None,
    **bounds: float,
) -> Iterator[AdmittingServer]:
    async def echo(request: Request) -> Response:
        if seen is not None:
            seen.append(weakref.ref(request))
        return Response(await read_body(request, 1000, within_seconds=within_seconds))

    async def much(request: Request) -> Response:
        return Response(b"a" * 50_000_000)

    admission = Admission(limits or RequestLimits())
    endpoint = AdmittedEndpoint("echo", echo, admission, None, openai_response)
    routes = [Route("/echo", endpoint, methods=["POST"]), Route("/much", much)]
    app = new_app(openai_response, ApiKeys([]), title="a test", about="", routes=routes)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in bounds.items():
            patch.setattr(BoundedConnection, name, value)
        if "most" in bounds:
            patch.setattr("mini_agentic_rl.http.server.most_connections", lambda: bounds["most"])
        with AdmittingServer(app, admission, "127.0.0.1", 0, "test server") as server:
            yield server


def _connect(server: AdmittingServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def _closed(connection: socket.socket) -> bool:
    """Return True once the other side has closed; fails after 20 seconds."""
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


@pytest.mark.parametrize("sent", [b"", b"POST /echo", HEAD])
def test_a_head_has_to_arrive_in_time(sent):
    with _serving(head_seconds=0.2) as server, _connect(server) as connection:
        connection.sendall(sent)
        assert _closed(connection)


def test_the_head_of_a_second_request_has_to_arrive_in_time_too():
    with _serving(head_seconds=0.5) as server, _connect(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 1\r\n\r\na")
        answer = connection.recv(4096)
        while not answer.endswith(b"\r\n\r\na"):
            answer += connection.recv(4096)
        connection.sendall(b"POST /ec")
        assert _closed(connection)


def test_a_head_is_bounded_in_size():
    with _serving() as server, _connect(server) as connection:
        with contextlib.suppress(ConnectionError):
            for _ in range(4 * HEAD_BYTES // 1000):
                connection.sendall(b"x" * 1000)
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(4096)
        assert b" 200 " not in answer


def test_a_body_has_to_arrive_in_time():
    with _serving() as server, _connect(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 5\r\n\r\na")
        answer = b""
        while part := connection.recv(4096):
            answer += part
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"max_body_seconds" in answer


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "chunk"),
    [
        (CHUNKED, b"000000000000001\r\na\r\n"),
        (CHUNKED, b"3;a=" + b"b" * 50 + b"\r\nabc\r\n"),
        (HEAD + b"Content-Length: 1\r\n\r\na" + CHUNKED, b"1\r\na\r\n"),
    ],
    ids=["one byte, a long length", "extensions", "behind another request"],
)
def test_a_body_in_tiny_chunks_is_refused_and_holds_nobody_up(head, chunk):
    answer = b""
    with _serving() as server, _connect(server) as connection, httpx.Client(base_url=server.root, timeout=20) as client:
        client.post("/echo", content=b"a")
        with contextlib.suppress(ConnectionError):
            connection.sendall(head + chunk * 40_000)
        began = time.monotonic()
        assert client.post("/echo", content=b"a").content == b"a"
        assert time.monotonic() - began < 1.0
        with contextlib.suppress(ConnectionError):
            connection.sendall(chunk * 260_000 + b"0\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(4096):
                answer += part
    assert b"HTTP/1.1 400" in answer
    assert f"more than {FRAMING_BYTES} bytes".encode() in answer


def test_a_body_in_chunks_of_some_size_is_accepted():
    with _serving() as server:
        parts = [b"a"] * 100 + [b"b" * 64] * 14
        answer = httpx.post(f"{server.root}/echo", content=iter(parts), timeout=20)
        assert (answer.status_code, answer.content) == (200, b"".join(parts))


def test_no_more_is_read_at_once_than_the_body_and_a_little():
    read: list[tuple[int, int]] = []

    class Watched(BoundedConnection):
        def read(self, data: bytes) -> None:
            read.append((self._body_left, len(data)))
            super().read(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mini_agentic_rl.http.server.BoundedConnection", Watched)
        with _serving() as server, _connect(server) as connection:
            request = HEAD + b"Content-Length: 900\r\n\r\n" + b"a" * 900
            last = request.replace(b"localhost", b"localhost\r\nConnection: close")
            connection.sendall(request * 199 + last)
            while connection.recv(65536):
                pass
    assert len(read) > 40
    assert max(size - left for left, size in read) <= READ_BYTES


MUCH = b"GET /much HTTP/1.%d\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("minor", [0, 1], ids=["closed after the answer", "kept open"])
def test_who_reads_no_more_of_an_answer_is_cut_off(minor):
    with _serving(stalled_seconds=0.3, most=4) as server, contextlib.ExitStack() as stack:
        for connection in [stack.enter_context(_connect(server)) for _ in range(4)]:
            connection.sendall(MUCH % minor)  # reads nothing: the answer fills what the system holds, and then waits

        def is_answered() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{server.root}/docs", timeout=20).status_code == 200
            return False

        time.sleep(1.0)
        until(is_answered)


def _read_slowly(connection: socket.socket, pause_s: float) -> int:
    """Read an answer of 50 MB; return how much of it came."""
    got = 0
    with contextlib.suppress(ConnectionError):
        while got < 50_000_000 and (part := connection.recv(1 << 20)):
            got += len(part)
            time.sleep(pause_s)
    return got


def test_who_reads_slowly_gets_the_whole_answer():
    with _serving(stalled_seconds=0.5) as server, _connect(server) as connection:
        connection.sendall(MUCH % 1)
        assert _read_slowly(connection, 0.02) >= 50_000_000


def test_newcomers_do_not_take_the_place_of_who_still_reads_its_answer():
    with _serving(most=4) as server, _connect(server) as connection, contextlib.ExitStack() as stack:
        connection.sendall(MUCH % 1)
        connection.recv(1)
        for _ in range(8):
            newcomer = stack.enter_context(_connect(server))
            newcomer.sendall(b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert newcomer.recv(1)
        assert _read_slowly(connection, 0.0) >= 50_000_000


def test_a_newcomer_takes_the_place_of_who_has_kept_its_request_back_for_longest():
    with _serving(most=8) as server, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(_connect(server)) for _ in range(30)]
        for connection in slow:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"POST /ec")
        answer = httpx.post(f"{server.root}/echo", content=b"a", timeout=20)
        assert (answer.status_code, answer.content) == (200, b"a")
        assert all(_closed(connection) for connection in slow[:20])


@pytest.mark.parametrize("kept", ["bodies", "idle connections"])
def test_newcomers_that_come_at_once_do_not_take_each_others_place(kept):
    with _serving(most=8, within_seconds=60.0) as server, contextlib.ExitStack() as stack:
        seen = b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(8):
            connection = stack.enter_context(_connect(server))
            connection.sendall(HEAD + b"Content-Length: 2\r\n\r\n" + (b"a" if kept == "bodies" else b"aa"))
            assert kept == "bodies" or connection.recv(4096)
        httpx.get(f"{server.root}/docs", timeout=20)  # whatever was sent before has been read by then
        newcomers = [stack.enter_context(_connect(server)) for _ in range(6)]
        for connection in newcomers:
            with contextlib.suppress(ConnectionError):
                connection.sendall(seen)
        assert not any(_closed(connection) for connection in newcomers)


def test_of_requests_whose_body_is_awaited_those_that_send_nothing_make_room():
    limits = RequestLimits(max_awaited_bodies=4)
    with _serving(limits=limits, within_seconds=600.0) as server, contextlib.ExitStack() as stack:
        head = HEAD + b"Content-Length: 40\r\n\r\n"
        honest = stack.enter_context(_connect(server))
        honest.sendall(head)
        slow = []
        for _ in range(30):
            slow.append(stack.enter_context(_connect(server)))
            slow[-1].sendall(head)
            httpx.get(f"{server.root}/seen", timeout=20)  # whatever was sent before has been read by then
            honest.sendall(b"a")
            httpx.get(f"{server.root}/seen", timeout=20)
        assert all(_closed(connection) for connection in slow[:20])
        honest.sendall(b"a" * 10)
        answer = b""
        while not answer.endswith(b"a" * 40):
            part = honest.recv(4096)
            assert part, answer
            answer += part


def test_a_request_whose_client_leaves_is_gone_at_once_and_not_when_garbage_is_collected():
    requests: list[weakref.ref[Request]] = []
    gc.disable()
    try:
        with _serving(within_seconds=60.0, seen=requests) as server:
            with _connect(server) as connection:
                connection.sendall(HEAD + b"Content-Length: 5\r\n\r\na")
                until(lambda: bool(requests))
            until(lambda: requests[0]() is None)
    finally:
        gc.enable()


async def answer(request: Request) -> Response:
    return PlainTextResponse("here")


async def end_loop(request: Request) -> Response:
    asyncio.get_running_loop().stop()
    return PlainTextResponse("")


async def wait(request: Request) -> Response:
    await asyncio.sleep(600)
    return PlainTextResponse("late")


def test_who_waits_for_an_answer_of_a_loop_that_ends_is_told_at_once() -> None:
    app = Starlette(routes=[Route("/", answer), Route("/wait", wait), Route("/end", end_loop)])
    with ThreadPoolExecutor(8) as clients, httpx.Client(timeout=30) as kept:
        server = AdmittingServer(app, Admission(RequestLimits()), "127.0.0.1", 0, "test server").start()
        try:
            assert kept.get(server.root).text == "here"  # its connection stays open
            waiting = [clients.submit(httpx.get, f"{server.root}/wait", timeout=60) for _ in range(8)]
            time.sleep(0.3)
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{server.root}/end", timeout=2)
            for request in waiting:
                cut_off = isinstance(request.exception(timeout=30), httpx.TransportError)
                assert cut_off or request.result().status_code == 500
            with contextlib.suppress(httpx.TransportError):  # it may learn only now that its connection was ended
                kept.get(server.root)
            assert kept.get(server.root).text == "here"
        finally:
            server.stop()


def test_a_server_that_ends_unasked_serves_again_on_its_port(caplog: pytest.LogCaptureFixture) -> None:
    app = Starlette(routes=[Route("/", answer), Route("/end", end_loop)])
    server = AdmittingServer(app, Admission(RequestLimits()), "127.0.0.1", 0, "test server").start()
    try:
        for ended in range(1, 3):
            while caplog.text.count("the test server stopped unexpectedly") < ended:  # it may not be there again yet
                with contextlib.suppress(httpx.HTTPError):  # it may just have been answered
                    httpx.get(f"{server.root}/end", timeout=2)
            assert httpx.get(server.root, timeout=60).text == "here"
            assert server.running
    finally:
        server.stop()
    assert not server.running
