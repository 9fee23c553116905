"""Sessions of agents in use: other keys, hostile bodies, numbers and ids, and everything at the same time."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from .conftest import SIZE, Attack
from .neighbours import Neighbour, Served, served
from .servers import CHAT, SESSIONS
from .test_large_bodies import JSON, LARGEST, SHAPES
from .test_odd_requests import NOT_FINITE, ODD, places, with_text

SECRET: Final = "the colour of the vault is ochre"
SIZES: Final = (100_000, LARGEST)
LIMIT_S: Final = 30
FRAMES: Final = {
    "/v1/sessions": ("%s", '{"task":%s,"consent":true}', '{"key":%s,"consent":true}', '{"id":%s,"consent":true}'),
    "/v1/sessions/there/reward": ("%s", '{"reward":%s}', '{"reward":1,"response_id":%s}', '{"reward":1,"choice":%s}'),
    "/v1/sessions/comparisons": (
        *("%s", '{"scores":%s}', '{"chosen":%s,"rejected":{"session":"b"}}', '{"scores":[{"session":%s,"score":1}]}'),
    ),
    "/v1/sessions/there/end": ("%s",),
}
BODIES: Final[dict[str, Any]] = {
    "/v1/sessions": {"id": "odd", "key": "k", "consent": True, "task": {"a": [1]}},
    "/v1/sessions/there/reward": {"reward": 1.0, "response_id": "a", "choice": 0, "replace": True},
    "/v1/sessions/comparisons": {
        "scores": [{"session": "there", "score": 1.0, "response_id": "a", "choice": 0}, {"session": "b", "score": 0}],
        "replace": False,
    },
    "/v1/sessions/there/end": {},
}
NUMBERS: Final = [
    *(*NOT_FINITE, "1e308", "-1.7e308", "1e10", "-1000000001", str(10**400), "9" * 5000),
    *('"nan"', '"inf"', '"1e999"', "[1]", "{}", "null", '""', '"one"', '"١e5"'),
]
IDS: Final = [
    *(".", "..", "", " ", "a/b", "../../etc/passwd", "a%2fb", "a\\b", "a\x00", "a\n", "\r\nX-Session-Consent: yes"),
    *("a" * 129, "a" * 100_000, "１２", "é", "🙂", "\ud800", "a?b", "a#b", "a;b", "a&b", "<b>", "' OR 1=1 --", "a b"),
]
KEPT_IDS: Final = ["...", "-", "_", "a" * 128, "comparisons", "reward", "end", "@:=+-", ".a", "se-" + "0" * 32, "null"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(SESSIONS, str(tmp_path_factory.mktemp("sessions") / "sessions.db")) as server:
        yield server


def client(server: Served, key: str = "alice") -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=120)


def opened(http: httpx.Client, name: str, text: str = SECRET, *, calls: int = 1) -> dict[str, Any]:
    """Open a session that makes calls, and return what is known of it then, with the id of its last answer."""
    told: dict[str, Any] = http.post("/v1/sessions", json={"id": name, "consent": True}).raise_for_status().json()
    for _ in range(calls):
        asked = {**CHAT, "messages": [{"role": "user", "content": text}]}
        answer = http.post(f"{told['path']}/chat/completions", json=asked).raise_for_status().json()
        told["answer"] = answer["id"]
    return told


def judged(http: httpx.Client, name: str) -> list[dict[str, Any]]:
    rewards: list[dict[str, Any]] = http.get(f"/v1/sessions/{name}").raise_for_status().json()["rewards"]
    return rewards


def test_sessions_across_keys(attack: Attack, server: Served) -> None:
    draw = random.Random(3)
    with client(server) as alice, client(server, "bob") as bob:
        opened(bob, "mine", "harmless")
        for number in range(attack.times(100)):
            name = f"across-{number}"
            with attack.attempt(name, limit_s=LIMIT_S):
                there = opened(alice, name)
                alice.post(f"/v1/sessions/{name}/reward", json={"reward": 0.25}).raise_for_status()
                before = alice.get(f"/v1/sessions/{name}?messages=yes").json()
                rollout = there["path"].removesuffix("/v1")
                other, whole = {"session": name}, {**CHAT, "store": True}
                tries = [
                    bob.get(f"/v1/sessions/{name}?messages=yes"),
                    bob.delete(f"/v1/sessions/{name}"),
                    bob.post(f"/v1/sessions/{name}/end", json={}),
                    bob.post(f"/v1/sessions/{name}/reward", json={"reward": 1, "replace": True}),
                    bob.post("/v1/sessions/comparisons", json={"chosen": other, "rejected": {"session": "mine"}}),
                    bob.post("/v1/sessions/comparisons", json={"scores": [{**other, "score": 1}] * 2}),
                    bob.post(f"{rollout}/v1/chat/completions", json=whole),
                    bob.post(f"{rollout}/v1/messages", json={**whole, "max_tokens": 1}),
                    bob.post(f"{rollout}/v1/responses", json={"model": "tiny", "input": "?"}),
                    bob.get(f"{rollout}/v1/responses/{there['answer']}"),
                ]
                draw.shuffle(tries)
                assert {one.status_code for one in tries} <= {404, 400}, [one.text for one in tries]
                assert not any(SECRET in one.text for one in tries)
                headers = {"X-Session-Id": name, "X-Session-Consent": "yes"}
                bob.post("/v1/chat/completions", json=CHAT, headers=headers).raise_for_status()  # one of bob's own
                assert SECRET not in bob.get(f"/v1/sessions/{name}?messages=yes").raise_for_status().text
                bob.delete(f"/v1/sessions/{name}").raise_for_status()
                assert alice.get(f"/v1/sessions/{name}?messages=yes").json() == before
                for wrong in ({}, {"authorization": "Bearer other"}):
                    assert httpx.get(f"{server.url}/v1/sessions/{name}", headers=wrong).status_code == 401


def test_large_bodies_about_sessions(attack: Attack, server: Served) -> None:
    tries = [
        (path, frames[(number + turn) % len(frames)], name, SIZES[turn])
        for turn in range(2)
        for path, frames in FRAMES.items()
        for number, name in enumerate(SHAPES)
    ]
    random.Random(1).shuffle(tries)
    with client(server) as http, Neighbour(f"{server.url}/") as neighbour:
        opened(http, "there")
        for path, frame, name, size in tries[: attack.times(len(tries))]:
            body = (frame % SHAPES[name](size)).encode()
            neighbour.forget()
            with attack.attempt(f"{name}, {len(body)} bytes, to {path}"), attack.memory_of(server.pid):
                answer = http.post(path, content=body, headers=JSON)
                assert answer.status_code < 500, answer.text[:300]
                assert len(answer.content) < 10_000, "it says back what it was sent"
                attack.neighbour(neighbour.longest())
    assert (attack.row.peak_mib or 0) < 1024, "more than 1 GB"


def test_odd_values_in_every_field_about_sessions(attack: Attack, server: Served) -> None:
    tries = [(path, body, place, odd) for path, body in BODIES.items() for place in places(body) for odd in ODD]
    random.Random(2).shuffle(tries)
    with client(server) as http:
        opened(http, "there")
        for path, body, place, odd in tries[: attack.times(len(tries))]:
            with attack.attempt(f"{path} with {place} = {odd[:40]}", limit_s=LIMIT_S):
                answer = http.post(path, content=with_text(body, place, odd), headers=JSON)
                assert answer.status_code < 500, answer.text[:500]
                assert answer.status_code < 400 or answer.json()["error"]["message"], answer.text


def test_numbers_that_are_no_reward(attack: Attack, server: Served) -> None:
    frames = {
        "/v1/sessions/numbers/reward": '{"reward":%s,"replace":true}',
        "/v1/sessions/comparisons": '{"scores":[{"session":"numbers","score":%s},{"session":"numbers2","score":0}]}',
    }
    with client(server) as http:
        opened(http, "numbers")
        opened(http, "numbers2")
        for (path, frame), number in itertools.product(frames.items(), NUMBERS):
            with attack.attempt((path, number[:40]), limit_s=LIMIT_S):
                answer = http.post(path, content=(frame % number).encode(), headers=JSON)
                assert answer.status_code == 400, answer.text[:300]
                assert len(answer.content) < 12_000, "it says back what it was sent"
        assert judged(http, "numbers") == []


def test_ids_that_are_none_and_odd_ones_that_are(attack: Attack, server: Served) -> None:
    with client(server) as http:
        for name in IDS:
            with attack.attempt(("none", name[:40]), limit_s=LIMIT_S):
                body = json.dumps({"id": name, "consent": True}).encode()
                assert http.post("/v1/sessions", content=body, headers=JSON).status_code == 400
                if name.strip() and not set(name) & set("\r\n\x00") and len(name) < 1000:  # a client can send it so
                    header = name.encode("utf-8", "surrogatepass")
                    sent = [(b"X-Session-Id", header), (b"X-Session-Consent", b"yes")]
                    assert http.post("/v1/chat/completions", json=CHAT, headers=sent).status_code == 400, name
        for name in KEPT_IDS:
            with attack.attempt(("kept", name), limit_s=LIMIT_S):
                opened(http, name)
                http.post(f"/v1/sessions/{name}/reward", json={"reward": 1}).raise_for_status()
                assert http.get(f"/v1/sessions/{name}").json()["status"] == "judged"
                assert http.delete(f"/v1/sessions/{name}").json()["deleted"] is True
                assert http.get(f"/v1/sessions/{name}").status_code == 404


def test_everything_at_once_about_a_few_sessions(attack: Attack, server: Served) -> None:
    """Rewards, comparisons, ends, deletions and openings of the same sessions: each is done or refused, no comparison
    is half there, and what is told at the end is something that was acknowledged."""
    draw = random.Random(5)

    async def round_of(number: int) -> None:
        names = [f"race-{number}-{letter}" for letter in "abc"]
        with client(server) as http:
            paths = {name: opened(http, name)["path"] for name in names}
        acknowledged: set[tuple[str, float]] = set()
        whole: Counter[str] = Counter()
        bound = httpx.Limits(max_connections=32)
        async with httpx.AsyncClient(
            base_url=server.url, headers={"authorization": "Bearer alice"}, timeout=120, limits=bound
        ) as http:

            async def act(turn: int) -> None:
                name, other = draw.sample(names, 2)
                value = turn / 100
                kind = draw.choice(["reward", "reward", "compare", "compare", "end", "delete", "open", "ask", "show"])
                again = draw.random() < 0.5
                if kind == "reward":
                    sent = {"reward": value, "replace": again}
                    answer = await http.post(f"/v1/sessions/{name}/reward", json=sent)
                    if answer.status_code == 200:
                        acknowledged.add((name, value))
                elif kind == "compare":
                    scores = [{"session": name, "score": value}, {"session": other, "score": value + 0.5}]
                    answer = await http.post("/v1/sessions/comparisons", json={"scores": scores, "replace": again})
                    if answer.status_code == 201:
                        acknowledged.update({(name, value), (other, value + 0.5)})
                        whole[answer.json()["id"]] += 1
                elif kind == "delete" and turn % 3 == 0:
                    answer = await http.delete(f"/v1/sessions/{name}")
                elif kind == "open":
                    answer = await http.post("/v1/sessions", json={"id": name, "consent": True})
                elif kind == "ask":
                    answer = await http.post(f"{paths[name]}/chat/completions", json=CHAT)
                elif kind == "end":
                    answer = await http.post(f"/v1/sessions/{name}/end", json={})
                else:
                    answer = await http.get(f"/v1/sessions/{name}?messages=yes")
                assert answer.status_code in (200, 201, 404, 409), (kind, answer.status_code, answer.text)

            await asyncio.gather(*(act(turn) for turn in range(40)))
            for name in names:
                shown = await http.get(f"/v1/sessions/{name}")
                for one in shown.json()["rewards"] if shown.status_code == 200 else ():
                    assert (name, one["reward"]) in acknowledged, one
                    assert one["comparison"] is None or one["comparison"] in whole, "half a comparison"

    for number in range(attack.times(200 if SIZE >= 1 else 100)):
        with attack.attempt(number, limit_s=60):
            asyncio.run(round_of(number))
