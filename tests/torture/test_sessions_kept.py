"""What is kept of sessions: what was acknowledged outlives a kill and a full disk, what was deleted is nowhere, and
neither many sessions nor long ones are slow."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.apps.learning import Judgement, SessionBook, delete_old
from mini_agentic_rl.gateway import SessionSettings
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.semconv import CompletionSpanAttributes as Call
from mini_agentic_rl.store import SqlLightningStore
from mini_agentic_rl.types import Span
from processes import PythonProcess

from .conftest import Attack
from .neighbours import LONGEST_WAIT_S, Neighbour, served
from .servers import SESSIONS
from .test_full_disk import _can_mount, _disk

HEADERS = {"authorization": "Bearer alice", "X-Session-Consent": "yes"}
LIMIT_S = 60
LONG_CALLS = 3000
CALL_BYTES = 100_000


@contextmanager
def gateway(path: Path) -> Iterator[httpx.Client]:
    """Serve sessions of this process, and yield a client of alice."""
    tokenizer, store = small_tokenizer(CHATML_TOOLS), SqlLightningStore(path)
    backend = ScriptedSampler(tokenizer, ["ok"], context_length=32768)
    server = MiniLLMServer(
        backend, tokenizer, model_name="tiny", store=store, api_keys=["alice"], sessions=SessionSettings()
    )
    with server, httpx.Client(base_url=server.root, headers=HEADERS, timeout=60) as http:
        yield http
    asyncio.run(store.close())


def ask(http: httpx.Client, name: str, text: str) -> httpx.Response:
    body = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": text}]}
    return http.post(
        "/v1/chat/completions", json=body, headers={"X-Session-Id": name, "X-Session-Key": text[:200].strip()}
    )


def written(path: Path) -> bytes:
    """Return every byte that the store has in files."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*")))


def test_what_is_deleted_is_in_no_file(attack: Attack, tmp_path: Path) -> None:
    """Short and long texts, deleted in any order, beside a reader that never rests."""
    draw, path, stop = random.Random(7), tmp_path / "sessions.db", threading.Event()

    def read() -> None:
        with closing(sqlite3.connect(path)) as reader:
            while not stop.wait(0.001):
                reader.execute("SELECT count(*) FROM agl_spans").fetchall()

    with gateway(path) as http:
        kept: dict[str, bytes] = {}
        reading = threading.Thread(target=read)
        ask(http, "first", "begin").raise_for_status()
        reading.start()
        for number in range(attack.times(600)):
            name, secret = f"s{number}", f"secret-{number:06}-{draw.getrandbits(64):016x}"
            text = (secret + " ") * draw.choice([1, 1, 3, 40, 500])
            answered = ask(http, name, text[:12_000])
            assert answered.status_code == 200, answered.text
            if draw.random() < 0.5:
                http.post(f"/v1/sessions/{name}/reward", json={"reward": 1}).raise_for_status()
            kept[name] = secret.encode()
            if draw.random() < 0.5:
                gone = draw.choice(list(kept))
                with attack.attempt(gone, limit_s=LIMIT_S):
                    http.delete(f"/v1/sessions/{gone}").raise_for_status()
                    text_gone = kept.pop(gone)
                    found = written(path)
                    assert text_gone not in found
                    assert all(secret in found for secret in list(kept.values())[-3:])
        stop.set()
        reading.join()


def test_what_was_acknowledged_outlives_a_kill(attack: Attack, tmp_path: Path) -> None:
    draw, path = random.Random(9), tmp_path / "sessions.db"
    program = tmp_path / "served.py"
    program.write_text(SESSIONS, encoding="utf-8")
    given: dict[str, float] = {}
    deleted: set[str] = set()

    def press(url: str, letter: str) -> None:
        """Open, judge and delete until the server is gone; keep what it has acknowledged."""
        with httpx.Client(base_url=url, headers=HEADERS, timeout=30) as http:
            for number in range(1000):
                name, reward = f"{letter}-{number}", number / 8
                try:
                    ask(http, name, "secret").raise_for_status()
                    http.post(f"/v1/sessions/{name}/reward", json={"reward": reward}).raise_for_status()
                    given[name] = reward
                    if number % 3 == 0:
                        given.pop(name)
                        http.delete(f"/v1/sessions/{name}").raise_for_status()
                        deleted.add(name)
                except httpx.TransportError:
                    return

    for number in range(attack.times(40)):
        with attack.attempt(number, limit_s=LIMIT_S), PythonProcess(program, str(path), held=True) as process:
            url = process.wait_for_line()
            pressing = [threading.Thread(target=press, args=(url, f"{number}{letter}")) for letter in "abc"]
            for each in pressing:
                each.start()
            enough = len(given) + len(deleted) + draw.randrange(5, 60)
            while len(given) + len(deleted) < enough and any(each.is_alive() for each in pressing):
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            for each in pressing:
                each.join()
            process.wait()
            with gateway(path) as http:
                for name, reward in draw.sample(sorted(given.items()), min(30, len(given))):
                    (told,) = http.get(f"/v1/sessions/{name}").raise_for_status().json()["rewards"]
                    assert told["reward"] == reward, name
                for name in draw.sample(sorted(deleted), min(30, len(deleted))):
                    assert http.get(f"/v1/sessions/{name}").status_code == 404, name
    assert given
    assert deleted


def test_the_disk_of_the_sessions_fills_up(attack: Attack, tmp_path: Path) -> None:
    if not _can_mount(tmp_path / "probe"):
        attack.row.tried = 1
        pytest.skip("a disk of its own needs the right to mount one")
    for round_ in range(attack.times(10)):
        disk, given, refused = tmp_path / str(round_), {}, 0
        with (
            _disk(disk, 700 + 37 * round_),
            gateway(disk / "sessions.db") as http,
            attack.attempt(round_, limit_s=LIMIT_S),
        ):
            for number in range(400):
                name = f"s{number}"
                answer = ask(http, name, "x" * 3000)
                judged = http.post(f"/v1/sessions/{name}/reward", json={"reward": number})
                assert {answer.status_code, judged.status_code} <= {200, 404, 409, 500, 503}, judged.text
                if judged.status_code == 200:
                    given[name] = float(number)
                refused += judged.status_code >= 500 or answer.status_code >= 500
                if refused > 5:
                    break
            assert refused
            assert given
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            ask(http, "after", "y").raise_for_status()
            http.post("/v1/sessions/after/reward", json={"reward": 1}).raise_for_status()
            for name, reward in given.items():
                (told,) = http.get(f"/v1/sessions/{name}").raise_for_status().json()["rewards"]
                assert told["reward"] == reward


def call_span(rollout_id: str, attempt_id: str, number: int, text: str) -> Span:
    attributes: dict[str, Any] = {
        Call.RESPONSE_ID: f"chatcmpl-{number}",
        Call.INPUT_MESSAGES: '[{"role":"user","content":"' + text + '"}]',
        Call.OUTPUT_MESSAGES: '{"role":"assistant","content":"ok"}',
    }
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id, "sequence_id": number + 1}
    return Span.from_attributes(attributes=attributes, name=Call.SPAN_NAME, **ids)


async def many_sessions(attack: Attack, store: SqlLightningStore, count: int) -> None:
    book = SessionBook(store)
    for start in range(0, count, 200):
        names = [f"s{number}" for number in range(start, min(count, start + 200))]
        await asyncio.gather(*(book.open("alice", name, key=name, consent=True) for name in names))
    for name in ("s0", f"s{count // 2}", f"s{count - 1}"):
        with attack.attempt((count, name), limit_s=LONGEST_WAIT_S):
            record = await book.get("alice", name)
            await store.add_span(call_span(record.rollout_id, record.attempt_id, 0, "?"))
            assert (await book.judge("alice", Judgement(name, 1.0))).judged
    began = time.monotonic()
    deleted = await delete_old(store, -1.0)
    with attack.attempt(f"{count} deleted"):
        assert deleted == count
        assert time.monotonic() - began < 30 + count / 100, "longer than 10 ms for each"


def test_many_sessions_are_judged_and_swept(attack: Attack, tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "sessions.db")
    asyncio.run(many_sessions(attack, store, attack.times(20_000)))
    asyncio.run(store.close())


def test_a_session_of_many_long_calls_is_shown_and_judged(attack: Attack, tmp_path: Path) -> None:
    path, calls = tmp_path / "sessions.db", attack.times(LONG_CALLS)

    async def fill() -> None:
        store = SqlLightningStore(path)
        record = await SessionBook(store).open("alice", "long", consent=True)
        assert record is not None
        for number in range(calls):
            text = f"{number} " + "x" * CALL_BYTES
            await store.add_span(call_span(record.rollout_id, record.attempt_id, number, text))
        await store.close()

    asyncio.run(fill())
    with (
        served(SESSIONS, str(path)) as server,
        httpx.Client(base_url=server.url, headers=HEADERS, timeout=120) as http,
        Neighbour(f"{server.url}/") as neighbour,
    ):
        last = {"response_id": f"chatcmpl-{calls - 1}", "reward": 1, "replace": True}
        seen, first = 0, 0
        for turn in range(4):
            neighbour.forget()
            with attack.attempt(turn, limit_s=LIMIT_S), attack.memory_of(server.pid):
                told = http.get(f"/v1/sessions/long?messages=yes&first={first}").raise_for_status().json()
                assert told["calls"] == calls
                seen, first = seen + len(told["conversation"]), told["next"]
                assert first == seen < calls
                assert told["conversation"][0]["messages"][0]["content"].startswith(
                    f"{seen - len(told['conversation'])} "
                )
                http.post("/v1/sessions/long/reward", json=last).raise_for_status()
                http.post("/v1/sessions/long/reward", json={"reward": turn, "replace": True}).raise_for_status()
                unknown = http.post("/v1/sessions/long/reward", json={**last, "response_id": "chatcmpl-none"})
                assert unknown.status_code == 400
                attack.neighbour(neighbour.longest())
    assert (attack.row.peak_mib or 0) < 300
    assert os.path.getsize(path) > calls * CALL_BYTES
