"""Keys, and requests that a web page may have sent."""

from __future__ import annotations

import pytest

from mini_agentic_rl.http import ApiKeys, AuthenticationError, is_from_web_page, is_loopback


def test_without_keys_everybody_comes_in():
    assert ApiKeys([]).check({}) == ""
    assert ApiKeys([]).first is None


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
    ],
)
def test_a_request_of_another_site_is_known_by_its_origin_or_its_host(headers, expected):
    assert is_from_web_page(headers) is expected


def test_loopback_is_this_computer_alone():
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "192.0.2.1", "store.example")] == [False] * 4
