"""A server whose event loop ends for a reason of its own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mini_agentic_rl.http import ServerThread


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
        server = ServerThread(app, "127.0.0.1", 0, "test server").start()
        try:
            assert kept.get(server.root).text == "here"  # its connection stays open
            waiting = [clients.submit(httpx.get, f"{server.root}/wait", timeout=60) for _ in range(8)]
            time.sleep(0.5)
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
    server = ServerThread(app, "127.0.0.1", 0, "test server").start()
    try:
        for ended in range(1, 4):
            while caplog.text.count("the test server stopped unexpectedly") < ended:  # it may not be there again yet
                with contextlib.suppress(httpx.HTTPError):  # it may just have been answered
                    httpx.get(f"{server.root}/end", timeout=2)
            assert httpx.get(server.root, timeout=60).text == "here"
            assert server.running
    finally:
        server.stop()
    assert not server.running
