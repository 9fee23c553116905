"""Keys, rates, and requests that a web page may have sent."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from typer.testing import CliRunner

from mini_agentic_rl.commands.command_line import app
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway import LLMProxy
from mini_agentic_rl.http import ApiKeys, AuthenticationError, ServerStartError, is_from_web_page, is_loopback
from mini_agentic_rl.http.admission import RequestRate
from mini_agentic_rl.rewards import RemoteReward
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreClient, LightningStoreServer


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer two"}, {"authorization": "bearer  two"}, {"x-api-key": "two"}]
)
def test_a_key_is_taken_from_either_header(headers):
    keys = ApiKeys(["one", "two", "one"])
    assert keys.first == "one"
    assert keys.check(headers) == "two"


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "one"}, {"x-api-key": "one"}, {"authorization": "Bearer "}, {"authorization": "é"}],
)
def test_where_only_a_bearer_token_counts_nothing_else_lets_in(headers):
    with pytest.raises(AuthenticationError, match="API key") as raised:
        ApiKeys(["one"], bearer_only=True).check(headers)
    assert (raised.value.status, raised.value.code) == (401, "invalid_api_key")
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert ApiKeys(["one"], bearer_only=True).check({"authorization": f"{scheme} one"}) == "one"


@pytest.mark.parametrize("key", ["", "\n"])
@pytest.mark.parametrize(
    "make",
    [
        lambda key: LLMProxy(api_keys=["one", key]),
        lambda key: LightningStoreServer(InMemoryLightningStore(), port=0, api_key=key),
    ],
)
def test_an_empty_key_is_refused_and_does_not_let_everybody_in(make, key):
    with pytest.raises(ServerStartError, match=r"^api_key: an API key is empty"):
        make(key)


@pytest.mark.parametrize("key", [" one", "one\n", "o\x00ne", "one\u200b", "\udcff"])
def test_a_key_that_no_header_can_contain_is_refused_by_servers_and_clients(key):
    with pytest.raises(ServerStartError, match=r"^api_key: .*no header can contain"):
        ApiKeys(["one", key])
    upstream = {"model_name": "m", "base_url": "http://127.0.0.1:1"}
    for client in (
        partial(LightningStoreClient, "http://127.0.0.1:1"),
        partial(RemoteReward, "http://127.0.0.1:1"),
        lambda api_key: LLMProxy(model_list=[{**upstream, "api_key": api_key}]),
    ):
        with pytest.raises(UserError, match=r"^api_key: .*no header can contain"):
            client(api_key=key)


def test_a_key_may_have_letters_of_any_alphabet():
    async def ask() -> object:
        server = LightningStoreServer(InMemoryLightningStore(), port=0, api_key="ключ")
        await server.start()
        client = LightningStoreClient(server.endpoint, api_key="ключ")
        try:
            return (await client.statistics())["total_rollouts"]
        finally:
            await client.close()
            await server.close()

    assert asyncio.run(ask()) == 0


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        (["serve", "--model", "nowhere", "--api-key", ""], {}),
        (["score-server", "--model", "nowhere", "--api-key", "one", "--api-key", ""], {}),
        (["tinker", "--model", "nowhere", "--api-key", ""], {}),
        (["store", "--port", "0", "--api-key", ""], {}),
        (["store", "--port", "0"], {"AGL_API_KEY": ""}),
        (["dashboard", ".", "--port", "0", "--api-key", ""], {}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_no_command_serves_with_an_empty_key(command, variables, tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, command, env=variables)
    assert result.exit_code != 0
    assert "an API key is empty" in f"{result.output}{result.exception}"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"host": "localhost:4747"}, False),
        ({"host": "127.0.0.1:4747"}, False),
        ({"host": "[::1]:4747"}, False),
        ({}, False),
        ({"host": "evil.example"}, True),
        ({"host": "localhost:4747", "origin": "http://localhost:4747"}, False),
        ({"host": "localhost:4747", "origin": "http://evil.example"}, True),
        ({"host": "localhost:4747", "origin": "null"}, True),
        ({"host": "[::1"}, True),
        ({"host": "localhost:4747", "sec-fetch-site": "cross-site"}, True),
        ({"host": "localhost:4747", "sec-fetch-site": "same-site"}, True),
        ({"host": "127.0.0.1:4747", "origin": "http://127.0.0.1:4747", "sec-fetch-site": "cross-site"}, True),
        ({"host": "localhost:4747", "sec-fetch-site": "same-origin"}, False),
        ({"host": "localhost:4747", "sec-fetch-site": "none"}, False),
    ],
)
def test_a_request_of_another_site_is_known_by_its_origin_or_its_host(headers, expected):
    assert is_from_web_page(headers) is expected


def test_loopback_is_this_computer_alone():
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "192.0.2.1", "store.example")] == [False] * 4


def test_a_key_makes_a_minutes_worth_of_requests_at_once_and_then_one_in_each_share_of_it():
    now = [100.0]
    rate = RequestRate(30, clock=lambda: now[0])
    assert [rate.take("a") for _ in range(30)] == [0.0] * 30
    assert rate.take("a") == 2.0
    now[0] += 1.5
    assert rate.take("a") == 0.5
    assert rate.take("b") == 0.0
    now[0] += 0.5
    assert rate.take("a") == 0.0
    assert rate.take("a") == 2.0
    now[0] += 3600.0
    assert [rate.take("a") > 0 for _ in range(31)] == [False] * 30 + [True]
