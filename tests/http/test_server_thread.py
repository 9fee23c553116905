"""A server whose event loop ends for a reason of its own."""

from __future__ import annotations

import asyncio
import contextlib

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
