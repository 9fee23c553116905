"""Five hundred hostile queries, and as much noise: none writes, reads another file or runs over its limit."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import sys
import time
from pathlib import Path

import psutil
import pytest
from hostile_sql import fuzzed, hostile_queries

from mini_agentic_rl.recipes.sql.data import medical_database
from mini_agentic_rl.recipes.sql.tool import QueryError, QueryLimits, SqlDatabase
from mini_agentic_rl.recipes.sql.tool.database import GRACE

LIMITS = QueryLimits(timeout_seconds=0.05, max_memory_mib=64, max_rows=50, max_result_bytes=20_000)
SECRET = "the secret of another file"
SLACK = 60.0
"""Seconds beyond a query's limit that a busy machine may add. Some of the queries would take days."""


class Place:
    """A folder with the database, another one with a secret, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.path = medical_database(folder)
        self.secret = folder / "secret.db"
        with sqlite3.connect(self.secret) as connection:
            connection.execute("CREATE TABLE secret (text)")
            connection.execute("INSERT INTO secret VALUES (?)", (SECRET,))
        connection.close()
        self.target = folder / "made.db"
        self.database = SqlDatabase(self.path, LIMITS, immutable=True)
        self.before = self.state()

    def state(self) -> dict[str, str]:
        """Every file of the folder and its digest."""
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.path.parent.iterdir()}

    def worker(self) -> psutil.Process:
        (worker,) = [one for one in psutil.Process().children() if str(self.path) in one.cmdline()]
        return worker


@pytest.fixture
def place(tmp_path, monkeypatch):
    elsewhere = tmp_path / "working"  # files with relative names would come here
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    folder = tmp_path / "data"
    folder.mkdir()
    place = Place(folder)
    yield place
    place.database.close()
    assert place.state() == place.before
    assert os.listdir(elsewhere) == []


def ask(database: SqlDatabase, sql: str) -> str | None:
    """Why it was refused; None when it was answered, within all limits."""
    started = time.monotonic()
    refusal = None
    try:
        found = database.query(sql)
        assert len(found.rows) <= LIMITS.max_rows
        assert SECRET not in repr(found.rows)
        assert len(repr(found.rows)) < 3 * LIMITS.max_result_bytes
        assert found.tables <= {"meta", "drug", "disease", "symptom", "disease_symptom", "indication"} | {
            "contraindication",
            "interaction",
            "dosage",
        }
    except QueryError as error:
        refusal = str(error)
    assert time.monotonic() - started < LIMITS.timeout_seconds + GRACE + SLACK, sql
    return refusal


def test_five_hundred_hostile_queries_do_no_harm(place):
    place.database.query("SELECT 1 FROM drug")
    usual = place.worker().memory_info().rss
    queries = hostile_queries(str(place.secret), str(place.target), 520)
    assert len(queries) >= 500
    answered = []
    for sql, outcome in queries:
        refusal = ask(place.database, sql)
        if refusal is None:
            if outcome == "refused":
                answered.append(sql)
            continue
        assert refusal == " ".join(refusal.split()), (sql, refusal)
        assert 10 < len(refusal) < 400, (sql, refusal)
        assert not any(word in refusal for word in ("Traceback", "<class", "Error")), (sql, refusal)
    assert answered == []
    assert place.database.query("SELECT count(*) FROM drug").rows == ((300,),)
    if sys.platform == "linux":
        peak = next(
            int(line.split()[1]) << 10
            for line in Path(f"/proc/{place.worker().pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
        assert peak < usual + (LIMITS.max_memory_mib + 32 << 20)


def test_noise_is_answered_or_refused_and_changes_nothing(place):
    for sql in fuzzed(500):
        ask(place.database, sql)
    assert place.database.query("SELECT count(*) FROM disease").rows == ((150,),)


def test_a_query_that_sqlite_cannot_stop_is_killed_with_its_process(place, monkeypatch):
    place.database.query("SELECT 1 FROM drug")
    monkeypatch.setattr("mini_agentic_rl.recipes.sql.tool.database.GRACE", 0.2)
    first = place.worker()
    first.suspend()  # as if it were busy in one endless instruction
    with pytest.raises(QueryError, match=r"took longer than 0\.05 s"):
        place.database.query("SELECT 1 FROM drug")
    assert not first.is_running()
    assert place.database.query("SELECT count(*) FROM drug").rows == ((300,),)


def test_a_process_that_dies_is_replaced(place):
    place.database.query("SELECT 1 FROM drug")
    place.worker().kill()
    while any(process.is_up for process in place.database._processes):
        time.sleep(0.01)
    assert place.database.query("SELECT count(*) FROM drug").rows == ((300,),)


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits are those of Unix")
def test_the_process_of_a_database_may_write_no_file(place):
    place.database.query("SELECT 1 FROM drug")
    worker = place.worker()
    assert worker.rlimit(psutil.RLIMIT_FSIZE) == (0, 0)
    assert worker.rlimit(psutil.RLIMIT_AS)[0] < 8 << 30
