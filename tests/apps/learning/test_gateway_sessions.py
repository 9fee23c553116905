"""Sessions at a gateway: consent, every dialect, rewards that come later, comparisons, deletion, other keys."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from apps.learning.conftest import serve_policy
from mini_agentic_rl.apps.learning import (
    SessionConflictError,
    SessionRequestError,
    Sessions,
    UnknownSessionError,
    session,
)
from mini_agentic_rl.gateway import MiniLLMServer, ServedPolicy, SessionSettings
from mini_agentic_rl.store import LightningStore, SqlLightningStore

served = pytest.fixture(serve_policy, scope="module")  # nothing is trained here
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]


def client(url: str, key: str = "alice") -> OpenAI:
    return OpenAI(base_url=url, api_key=key, max_retries=0)


def talk(url: str, **options: Any) -> Any:
    with client(url) as openai:
        return openai.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4, **options)


def totals(store: LightningStore) -> tuple[int, int]:
    counted = asyncio.run(store.statistics())
    return counted["total_rollouts"], counted["total_spans"]


def test_a_block_records_its_calls_and_the_reward_may_come_later(gateway: MiniLLMServer, alice: Sessions) -> None:
    with session(gateway.endpoint, key="greeting", consent=True, api_key="alice") as opened:
        talk(opened.base_url)
        talk(opened.base_url)
    assert alice.show(opened.id)["status"] == "ended"
    alice.reward(opened.id, 0.5)
    told = alice.show(opened.id, messages=True)
    assert (told["status"], told["calls"], told["key"]) == ("judged", 2, "greeting")
    assert [one["reward"] for one in told["rewards"]] == [0.5]
    assert told["conversation"][0]["messages"] == HELLO


def test_one_header_makes_a_session_of_calls_in_every_dialect(gateway: MiniLLMServer, alice: Sessions) -> None:
    headers = {"X-Session-Id": "chat-1", "X-Session-Consent": "yes", "X-Session-Key": "greeting"}
    with client(gateway.endpoint) as openai:
        openai.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4, extra_headers=headers)
        first = openai.responses.create(model="tiny", input="Hello!", max_output_tokens=16, extra_headers=headers)
        openai.responses.create(
            model="tiny", input="More", previous_response_id=first.id, max_output_tokens=16, extra_headers=headers
        )
        assert openai.responses.retrieve(first.id, extra_headers=headers).id == first.id
    with Anthropic(base_url=gateway.endpoint.removesuffix("/v1"), api_key="alice") as anthropic:
        anthropic.messages.create(
            model="tiny", messages=[{"role": "user", "content": "Hello!"}], max_tokens=4, extra_headers=headers
        )
        with anthropic.messages.stream(
            model="tiny", messages=[{"role": "user", "content": "Hello!"}], max_tokens=4, extra_headers=headers
        ) as stream:
            stream.until_done()
    alice.reward("chat-1", 1.0, response_id=first.id)
    told = alice.show("chat-1")
    assert (told["calls"], told["key"], told["status"]) == (5, "greeting", "judged")


def test_nothing_is_kept_without_consent(gateway: MiniLLMServer, alice: Sessions, file_store: LightningStore) -> None:
    assert talk(gateway.endpoint, extra_headers={"X-Session-Id": "quiet"}).choices
    assert talk(gateway.endpoint, extra_headers={"X-Session-Id": "quiet", "X-Session-Consent": "no"}).choices
    with session(gateway.endpoint, api_key="alice") as opened:
        assert not opened.recorded
        talk(opened.base_url)
        opened.reward(1.0)
    assert totals(file_store) == (0, 0)
    with pytest.raises(UnknownSessionError, match="no consent"):
        alice.reward("quiet", 1.0)
    for consent in ({"X-Session-Consent": "yes"}, {"X-Session-Consent": "no"}, {}):
        talk(gateway.endpoint, extra_headers={"X-Session-Id": "s", **consent})
    assert alice.show("s")["calls"] == 2


def test_consent_may_be_assumed_by_a_setting(served: ServedPolicy, file_store: LightningStore) -> None:
    gateway = served.serve(store=file_store, sessions=SessionSettings(consent="assume"))
    with client(gateway.endpoint, "none") as openai:
        for consent in ({}, {"X-Session-Consent": "no"}):
            openai.chat.completions.create(
                model="tiny",
                messages=HELLO,
                max_tokens=2,
                extra_headers={"X-Session-Id": f"s{len(consent)}", **consent},
            )
    gateway.stop()
    assert totals(file_store)[0] == 1


def test_a_reward_survives_a_restart_of_the_server(
    gateway: MiniLLMServer, served: ServedPolicy, alice: Sessions, file_store: LightningStore
) -> None:
    opened = alice.open("s", consent=True)
    talk(opened.base_url)
    gateway.stop()
    assert isinstance(file_store, SqlLightningStore)
    again = SqlLightningStore(file_store.path)
    anew = served.serve(store=again, api_keys=["alice"], sessions=SessionSettings())
    with Sessions(anew.endpoint, api_key="alice") as sessions:
        sessions.reward("s", 1.0)
        assert sessions.show("s")["status"] == "judged"
    anew.stop()
    asyncio.run(again.close())


def test_a_second_reward_is_refused_unless_it_is_to_replace_the_first(alice: Sessions) -> None:
    opened = alice.open("s", consent=True)
    with pytest.raises(SessionConflictError, match="no call"):
        opened.reward(1.0)
    answer = talk(opened.base_url)
    opened.reward(1.0)
    opened.reward(1.0)
    with pytest.raises(SessionConflictError, match="given 1 before"):
        opened.reward(0.0)
    opened.reward(0.0, replace=True)
    opened.reward(0.25, response_id=answer.id)
    told = {one["response_id"] is None: one["reward"] for one in alice.show("s")["rewards"]}
    assert told == {True: 0.0, False: 0.25}


def test_what_cannot_be_a_reward_is_refused_by_name(gateway: MiniLLMServer, alice: Sessions) -> None:
    opened = alice.open("s", consent=True)
    talk(opened.base_url)
    for number in (float("nan"), float("inf")):
        with pytest.raises(SessionRequestError, match="finite"):
            opened.reward(number)
    with pytest.raises(SessionRequestError, match="has no answer"):
        opened.reward(1.0, response_id="chatcmpl-other")
    with pytest.raises(UnknownSessionError):
        alice.reward("other", 1.0)
    with pytest.raises(SessionRequestError, match="128"):
        alice.open("a b", consent=True)
    url, headers = gateway.endpoint + "/sessions/s/reward", {"authorization": "Bearer alice"}
    for body, status in (('{"reward": NaN}', 400), ('{"reward": "much"}', 400), ("{}", 400), ("[]", 400)):
        answer = httpx.post(url, content=body, headers={**headers, "content-type": "application/json"})
        assert (answer.status_code, "error" in answer.json()) == (status, True), body
    assert httpx.post(url, json={"reward": 1}).status_code == 401


def test_sessions_and_answers_are_compared(gateway: MiniLLMServer, alice: Sessions) -> None:
    for name in "abc":
        talk(alice.open(name, key="k", consent=True).base_url)
    first = alice.prefer("a", "b")
    assert {one["comparison"] for name in "ab" for one in alice.show(name)["rewards"]} == {first}
    with pytest.raises(SessionConflictError):
        alice.score_group({"b": 0.1, "c": 0.9})
    assert alice.show("c")["status"] == "open"
    alice.score_group({"b": 0.1, "c": 0.9}, replace=True)
    two = talk(alice.open("n", consent=True).base_url, n=2)
    alice.prefer(
        {"session": "n", "response_id": two.id, "choice": 1}, {"session": "n", "response_id": two.id, "choice": 0}
    )
    assert {one["choice"]: one["reward"] for one in alice.show("n")["rewards"]} == {1: 1.0, 0: 0.0}
    with pytest.raises(SessionRequestError, match="two or more"):
        alice.prefer("a", "a")
    with pytest.raises(SessionRequestError, match="each once"):  # an answer under its names in two dialects
        alice.prefer(
            {"session": "n", "response_id": two.id},
            {"session": "n", "response_id": two.id.replace("chatcmpl-", "resp_")},
        )
    answer = httpx.post(
        gateway.endpoint + "/sessions/comparisons", json={"chosen": {"session": "a"}}, headers={"x-api-key": "alice"}
    )
    assert answer.status_code == 400


def test_a_comparison_that_meets_another_reward_is_not_half_there(
    gateway: MiniLLMServer, alice: Sessions, file_store: LightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        talk(alice.open(name, consent=True).base_url)
    add = file_store.add_many_spans

    async def add_late(spans: Any) -> Any:
        monkeypatch.setattr(file_store, "add_many_spans", add)
        await asyncio.to_thread(alice.reward, "b", 0.5)
        return await add(spans)

    monkeypatch.setattr(file_store, "add_many_spans", add_late)
    with pytest.raises(SessionConflictError, match="at the same time"):
        alice.prefer("a", "b")
    assert [[one["reward"] for one in alice.show(name)["rewards"]] for name in "ab"] == [[], [0.5]]
    alice.reward("a", 0.25)
    assert [one["reward"] for one in alice.show("a")["rewards"]] == [0.25]


def test_deletion_leaves_nothing_of_a_session(
    gateway: MiniLLMServer, alice: Sessions, file_store: LightningStore
) -> None:
    secret = "my number is 4711-0815"
    opened = alice.open("s", consent=True, task={"note": secret})
    with client(opened.base_url) as openai:
        first = openai.responses.create(model="tiny", input=secret, max_output_tokens=16)
        opened.reward(1.0)
        assert alice.delete("s") is None
        assert totals(file_store) == (0, 0)
        assert isinstance(file_store, SqlLightningStore)
        with pytest.raises(Exception, match="not found"):
            openai.responses.create(model="tiny", input="and?", previous_response_id=first.id)
    assert gateway.service.memory.counters()["attempts"] == 0
    for file in file_store.path.parent.glob("sessions.db*"):  # its log is still open
        assert secret.encode() not in file.read_bytes()
    asyncio.run(file_store.close())
    with pytest.raises(Exception, match="store"):
        alice.delete("s")


def test_no_key_reaches_the_sessions_of_another(gateway: MiniLLMServer, alice: Sessions) -> None:
    opened = alice.open("s", consent=True)
    talk(opened.base_url)
    with Sessions(gateway.endpoint, api_key="bob") as bob:
        for call in (bob.show, bob.delete, bob.end, lambda name: bob.reward(name, 1.0)):
            with pytest.raises(UnknownSessionError):
                call("s")
        assert bob.open("s", consent=True).base_url != opened.base_url
    with client(opened.base_url, "bob") as openai, pytest.raises(Exception, match="no session of this API key"):
        openai.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2)
    assert alice.show("s")["calls"] == 1


def test_two_first_calls_at_once_are_one_session(gateway: MiniLLMServer, file_store: LightningStore) -> None:
    async def both() -> None:
        headers = {"authorization": "Bearer alice", "X-Session-Id": "s", "X-Session-Consent": "yes"}
        async with httpx.AsyncClient(base_url=gateway.endpoint, headers=headers, timeout=60) as http:
            body = {"model": "tiny", "messages": HELLO, "max_tokens": 2}
            answers = await asyncio.gather(*(http.post("/chat/completions", json=body) for _ in range(6)))
            assert [answer.status_code for answer in answers] == [200] * 6, json.dumps(answers[0].json())

    asyncio.run(both())
    assert totals(file_store) == (1, 6)


def test_requests_for_sessions_wait_together_for_a_locked_store(served: ServedPolicy, tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "sessions.db", busy_timeout_seconds=0.5)

    async def ask(url: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, headers={"authorization": "Bearer alice"}, timeout=60) as http:
            bodies = [{"id": str(number), "consent": True} for number in range(8)]
            return await asyncio.gather(*(http.post("/sessions", json=body) for body in bodies))

    with served.serve(store=store, api_keys=("alice",), sessions=SessionSettings()) as server:
        with closing(sqlite3.connect(tmp_path / "sessions.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            refusals = asyncio.run(ask(server.endpoint))
            waited_s = time.monotonic() - began
        assert {answer.status_code for answer in refusals} == {503}
        assert not any(str(tmp_path) in answer.text for answer in refusals)
        assert waited_s < 2.0
        assert [answer.status_code for answer in asyncio.run(ask(server.endpoint))] == [201] * 8
    asyncio.run(store.close())
