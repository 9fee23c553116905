"""Honest work beside work that takes long: a query beside slow queries, a text to score beside a batch of long ones."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from pathlib import Path

import httpx
import pytest

from mini_agentic_rl.recipes.sql.tool import QueryError, QueryLimits, SqlDatabase

from .conftest import Attack
from .neighbours import PROMISED_S, Neighbour, Waits, idle_server, served
from .servers import LONG_SCORES

SLOW = "SELECT count(*) FROM item a, item b, item c, item d WHERE a.price + b.price + c.price + d.price < 0"
QUICK = "SELECT name FROM item WHERE id = 7"
TEXT_WORDS = 2000


@pytest.fixture
def database(tmp_path: Path) -> SqlDatabase:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price REAL)")
        connection.executemany("INSERT INTO item VALUES (?, ?, ?)", [(n, f"thing {n}", n / 2) for n in range(300)])
    connection.close()
    return SqlDatabase(tmp_path / "shop.db", QueryLimits(timeout_seconds=2.0))


def test_honest_queries_beside_eight_slow_ones(attack: Attack, database: SqlDatabase) -> None:
    database.query(QUICK)
    stop = threading.Event()

    def ask_slowly() -> None:
        while not stop.is_set():
            with contextlib.suppress(QueryError):
                database.query(SLOW)

    slow = [threading.Thread(target=ask_slowly) for _ in range(8)]
    for each in slow:
        each.start()
    with Neighbour(idle_server().url) as control:
        for number in range(attack.times(200)):
            with attack.attempt(number):
                began = time.monotonic()
                assert database.query(QUICK).rows == (("thing 7",),)
                attack.neighbour(Waits(time.monotonic() - began, control.longest().control_s))
            time.sleep(0.02)
    stop.set()
    for each in slow:
        each.join()
    database.close()


def test_a_text_to_score_beside_a_batch_of_long_ones(attack: Attack) -> None:
    honest = {"prompt": "How many?", "response": "Three."}
    long = {"prompt": "How many?", "response": "three " * TEXT_WORDS}
    with served(LONG_SCORES) as server, httpx.Client(timeout=600) as client:
        client.post(f"{server.url}/score", json=honest).raise_for_status()
        alone = min(_seconds(client, f"{server.url}/score", long) for _ in range(3))
        with Neighbour(f"{server.url}/score", bodies=[honest]) as neighbour:
            for number in range(attack.times(3)):
                with attack.attempt(number):
                    answer = client.post(f"{server.url}/score/batch", json={"items": [long] * attack.times(256)})
                    assert answer.status_code == 200, answer.text
                    # It waits for the text that is under way, which takes as long as the model is large.
                    attack.neighbour(neighbour.longest(), PROMISED_S + alone)


def _seconds(client: httpx.Client, url: str, body: object) -> float:
    began = time.monotonic()
    client.post(url, json=body).raise_for_status()
    return time.monotonic() - began
