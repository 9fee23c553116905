"""A client that was made before, with a fixed `base_url`: its calls belong to the attempt that makes them."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests

from mini_agentic_rl import LitAgent
from mini_agentic_rl.http import HttpError


def _body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


class Sync(LitAgent):
    """Calls twice, and waits in between until the other rollout has called as well."""

    def __init__(self, call: Callable[[str], Any]) -> None:
        super().__init__()
        self.call = call
        self.both = threading.Barrier(2)

    def rollout(self, task):
        self.call(f"{task} 1")
        self.both.wait(30)
        self.call(f"{task} 2")


class Async(LitAgent):
    def __init__(self, call: Callable[[str], Any]) -> None:
        super().__init__()
        self.call = call

    async def rollout_async(self, task):
        await self.call(f"{task} 1")
        await self.call(f"{task} 2")


def _openai(url: str) -> Callable[[str], Any]:
    client = openai.OpenAI(base_url=url, api_key="none")
    return lambda text: client.chat.completions.create(**_body(text))


def _requests(url: str) -> Callable[[str], Any]:
    session = requests.Session()
    return lambda text: session.post(f"{url}/chat/completions", json=_body(text)).raise_for_status()


def _urllib(url: str) -> Callable[[str], Any]:
    def call(text: str) -> bytes:
        request = urllib.request.Request(
            f"{url}/chat/completions", json.dumps(_body(text)).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return answer.read()

    return call


@pytest.mark.parametrize("make", [_openai, _requests, _urllib], ids=lambda make: make.__name__)
async def test_calls_of_a_sync_client_go_to_their_own_attempts(rollouts, questions, make) -> None:
    found = await rollouts.run(Sync(make(rollouts.server.endpoint)), ["left", "right"])
    assert {task: questions(spans) for task, spans in found.items()} == {
        "left": ["left 1", "left 2"],
        "right": ["right 1", "right 2"],
    }


def _async_openai(url: str) -> tuple[Any, Callable[[str], Any]]:
    client = openai.AsyncOpenAI(base_url=url.replace("127.0.0.1", "localhost"), api_key="none")
    return client, lambda text: client.chat.completions.create(**_body(text))


def _aiohttp(url: str) -> tuple[Any, Callable[[str], Any]]:
    session = aiohttp.ClientSession()

    async def call(text: str) -> None:
        async with session.post(f"{url}/chat/completions", json=_body(text)) as answer:
            answer.raise_for_status()
            await answer.read()

    return session, call


@pytest.mark.parametrize("make", [_async_openai, _aiohttp], ids=lambda make: make.__name__)
async def test_calls_of_an_async_client_go_to_their_own_attempts(rollouts, questions, make) -> None:
    client, call = make(rollouts.server.endpoint)
    async with client:
        found = await rollouts.run(Async(call), ["left", "right"])
    assert {task: questions(spans) for task, spans in found.items()} == {
        "left": ["left 1", "left 2"],
        "right": ["right 1", "right 2"],
    }


async def test_a_call_that_the_sdk_tries_again_is_named_again(rollouts, questions, monkeypatch) -> None:
    client = openai.OpenAI(base_url=rollouts.server.endpoint, api_key="none")
    service = rollouts.server.service
    begin, failures = service.begin, []

    async def fails_first(*args: Any) -> Any:
        if not failures:
            failures.append(args)
            raise HttpError("not yet")
        return await begin(*args)

    monkeypatch.setattr(service, "begin", fails_first)
    found = await rollouts.run(
        Async(lambda text: asyncio.to_thread(client.chat.completions.create, **_body(text))), ["a"]
    )
    assert (len(failures), questions(found["a"])) == (1, ["a 1", "a 2"])


class _Headers(http.server.BaseHTTPRequestHandler):
    seen: list[str | None]

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("baggage"))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[tuple[str, list[str | None]]]:
    seen: list[str | None] = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Seen", (_Headers,), {"seen": seen}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", seen
    server.shutdown()
    server.server_close()


async def test_nobody_but_gateways_is_told_of_an_attempt(rollouts, stranger) -> None:
    url, seen = stranger

    class Asks(LitAgent):
        async def rollout_async(self, task):
            await asyncio.to_thread(httpx.get, url)
            await asyncio.to_thread(requests.get, url)
            await asyncio.to_thread(requests.get, url, headers={"baggage": "mine=1"})
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                await answer.read()

    await rollouts.run(Asks(), ["asks"])
    assert seen == [None, None, "mine=1", None]


async def test_what_a_request_was_given_is_as_before_once_it_is_sent(rollouts) -> None:
    with httpx.Client(base_url=rollouts.server.endpoint) as client:

        class Sends(LitAgent):
            def rollout(self, task):
                named = client.build_request(
                    "POST", "/chat/completions", json=_body("a"), headers={"baggage": "mine=1"}
                )
                plain = client.build_request("POST", "/chat/completions", json=_body("b"))
                client.send(named).raise_for_status()
                client.send(plain).raise_for_status()
                assert (named.headers.get("baggage"), plain.headers.get("baggage")) == ("mine=1", None)

        found = await rollouts.run(Sends(), ["task"])
    assert len(found["task"]) == 2
