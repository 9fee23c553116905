"""Five hundred hostile queries, and as much noise: none writes, reads another file or runs over its limit."""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
import sys
import time
from pathlib import Path

import psutil
import pytest

from mini_agentic_rl.recipes.sql.data import medical_database
from mini_agentic_rl.recipes.sql.tool import GRACE, QueryError, QueryLimits, SqlDatabase

LIMITS = QueryLimits(timeout_seconds=0.05, max_memory_mib=64, max_rows=50, max_result_bytes=20_000)
SECRET = "the secret of another file"
SLACK = 60.0
"""Seconds beyond a query's limit that a busy machine may add. Some of the queries would take days."""

FORBIDDEN = """
DROP TABLE IF EXISTS drug
DELETE FROM drug
UPDATE drug SET price = 0
INSERT INTO drug VALUES (999, 'x', 'x', 'x', 'x', 'x', 'x', 1, 1)
CREATE TABLE evil AS SELECT * FROM drug
CREATE TEMP TABLE evil AS SELECT * FROM drug
CREATE INDEX evil ON drug(price)
CREATE TRIGGER evil AFTER INSERT ON drug BEGIN DELETE FROM drug; END
CREATE VIRTUAL TABLE temp.evil USING rtree(a, b, c)
VACUUM
VACUUM INTO '{target}'
BEGIN EXCLUSIVE
SAVEPOINT evil
ATTACH '{secret}' AS other
ATTACH 'file:{target}?mode=rwc' AS other
SELECT * FROM other.secret
PRAGMA writable_schema = ON
PRAGMA query_only = OFF
PRAGMA temp_store_directory = '{target}'
EXPLAIN QUERY PLAN SELECT * FROM drug
SELECT file FROM pragma_database_list()
SELECT sql FROM sqlite_schema
SELECT * FROM main.sqlite_master
SELECT * FROM json_each('[1,2]')
SELECT load_extension('evil', 'sqlite3_extension_init')
SELECT readfile('{secret}')
SELECT writefile('{target}', 'x')
SELECT sqlite_version()
SELECT last_insert_rowid(), changes(), total_changes()
SELECT randomblob(1000000000)
SELECT hex(zeroblob(100000000))
SELECT printf('%.1000000000c', 'x')
SELECT json_group_array(name) FROM drug
SELECT name FROM drug WHERE name REGEXP '(a+)+b'
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n
WITH n(t) AS (SELECT 'x' UNION ALL SELECT t || t FROM n) SELECT length(t) FROM n
SELECT * FROM drug; DROP TABLE drug
SELECT 1; ATTACH '{target}' AS other; CREATE TABLE other.evil (a)
WITH x AS (SELECT 1) DELETE FROM drug
SELECT ?
hello
SELECT 'unfinished
SELECT no_such_column FROM drug
""".strip().splitlines()
"""Queries that write, read something else, tell of the connection, or are no single SELECT."""
MALFORMED = [
    *("", " ;; ; ", "-- nothing", "/* nothing */", "VALUES (1)"),
    "SELECT \x00 1",
    "SELECT name FROM drug WHERE name = '\ud800'",
    f"SELECT {'(' * 300}1{')' * 300}",
    f"SELECT {'NOT ' * 450}1",
    f"SELECT {'-(' * 200}1{')' * 200}",
    f"SELECT * FROM {'(SELECT * FROM ' * 40}drug{')' * 40}",
    f"SELECT '{'a' * 5000}'",
]
JOINED = ", ".join(f"drug d{number}" for number in range(6))
DOUBLED = "SELECT name AS t FROM drug"
for _ in range(18):
    DOUBLED = f"SELECT t || t AS t FROM ({DOUBLED})"
REPLACED = "name"
for _ in range(12):
    REPLACED = f"replace({REPLACED}, 'a', 'aaaaaaaaaaaaaaaaaaaa')"
BOMBS = [
    f"SELECT count(*) FROM {JOINED}",
    f"SELECT * FROM {JOINED}",
    f"SELECT d0.name FROM {JOINED} ORDER BY d1.price, d2.price",
    f"SELECT DISTINCT d0.name || d1.name || d2.name FROM {JOINED}",
    f"SELECT d0.name, group_concat(d1.name || d2.name) FROM {JOINED} GROUP BY d0.id, d3.id",
    "SELECT a.name FROM drug a, drug b, drug c UNION SELECT b.name FROM drug a, drug b, drug c",
    "SELECT a.name, rank() OVER (ORDER BY b.price, c.price) FROM drug a, drug b, drug c",
    "SELECT count(*) FROM drug a WHERE (SELECT count(*) FROM drug b, drug c, drug d WHERE d.id + c.id > a.id) > 0",
    "SELECT *, *, *, *, * FROM drug a, drug b, drug c ORDER BY a.price DESC",
    f"SELECT length(t) FROM ({DOUBLED})",
    f"SELECT {REPLACED} FROM drug",
    "SELECT group_concat(a.name, b.name) FROM drug a, drug b, drug c",
    "SELECT a.name FROM drug a, drug b, drug c WHERE a.name || b.name LIKE '%a%b%c%d%e%f%g%' || c.name",
    "SELECT count(*) FROM drug a, drug b, drug c WHERE a.name GLOB '*a*' || b.name || '*'",
    "SELECT 9e999 - 9e999, 1e308 * 10, -9223372036854775808, x'00ff'",
    "SELECT pow(10, 308), exp(700), 1 / 0",
    f"SELECT {'CASE WHEN 1 THEN ' * 90}1{' END' * 90}",
    f"SELECT 1{' UNION ALL SELECT 1' * 60}",
    f"SELECT name FROM drug WHERE name LIKE '{'%a' * 200}'",
]
"""Queries that take long, or grow, if nothing holds them back: they may be answered, within the limits."""
FRAMES = (
    *("{}; SELECT 1", "{} -- x", "{}\n; VACUUM", "; {}", "\ufeff{}", "/*SELECT*/ {}", "--SELECT\n{}"),
    *("SELECT 1; {} ;", "SELECT count(*) FROM drug;/**/{}", "SELECT * FROM ({})", "WITH x AS ({}) SELECT * FROM x"),
    *("SELECT name FROM drug WHERE id IN ({})", "SELECT ({}) FROM drug, no_such_table", "EXPLAIN {}"),
    "SELECT name FROM drug UNION ALL {}",
)
WORDS = (
    "SELECT FROM drug disease WHERE name price ( ) , ; * || = < 'a' 1 DROP TABLE INSERT INTO UNION ALL WITH AS x "
    "RECURSIVE JOIN ON id GROUP BY ORDER LIMIT HAVING NOT IN EXISTS CASE WHEN THEN END ATTACH PRAGMA count( max( "
    'replace( randomblob( load_extension( -- /* */ " [ ] ` NULL CAST( AS BLOB) DELETE UPDATE SET VALUES'
)


def varied(rng: random.Random, sql: str) -> str:
    """Return a forbidden query in another form, which is forbidden as well."""
    words = sql.split(" ")
    at = rng.randrange(len(words))
    sql = " ".join([*words[:at], rng.choice(("/**/", "/*x*/", "--x\n", "\t", "\r\n")), *words[at:]])
    if "'" not in sql:
        sql = "".join(rng.choice((str.upper, str.lower))(character) for character in sql)
    return rng.choice(FRAMES).replace("{}", sql)


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


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    elsewhere, folder = tmp_path_factory.mktemp("working"), tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(elsewhere)  # files with relative names would be created here
        place = Place(folder)
        place.database.query("SELECT 1 FROM drug")
        yield place
        assert place.database.query("SELECT count(*) FROM drug").rows == ((300,),)
        place.database.close()
    assert place.state() == place.before
    assert os.listdir(elsewhere) == []


def ask(database: SqlDatabase, sql: str) -> str | None:
    """Return why a query was refused; None if it was answered, within all limits."""
    started = time.monotonic()
    refusal = None
    try:
        result = database.query(sql)
        assert len(result.rows) <= LIMITS.max_rows
        assert SECRET not in repr(result.rows)
        assert len(repr(result.rows)) < 3 * LIMITS.max_result_bytes
        assert result.tables <= {"meta", "drug", "disease", "symptom", "disease_symptom", "indication"} | {
            "contraindication",
            "interaction",
            "dosage",
        }
    except QueryError as error:
        refusal = str(error)
    assert time.monotonic() - started < LIMITS.timeout_seconds + GRACE + SLACK, sql
    return refusal


def test_five_hundred_hostile_queries_do_no_harm(place):
    usual = place.worker().memory_info().rss
    rng = random.Random(0)
    forbidden = [sql.format(secret=place.secret, target=place.target) for sql in FORBIDDEN]
    refused = [*forbidden, *MALFORMED, *(varied(rng, rng.choice(forbidden)) for _ in range(440))]
    assert len(refused) + len(BOMBS) >= 500
    for sql in (*refused, *BOMBS):
        refusal = ask(place.database, sql)
        if refusal is None:
            assert sql in BOMBS
            continue
        assert refusal == " ".join(refusal.split()), (sql, refusal)
        assert 10 < len(refusal) < 400, (sql, refusal)
        assert not any(word in refusal for word in ("Traceback", "<class", "Error")), (sql, refusal)
    if sys.platform == "linux":
        peak = next(
            int(line.split()[1]) << 10
            for line in Path(f"/proc/{place.worker().pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
        assert peak < usual + (LIMITS.max_memory_mib + 32 << 20)


def test_noise_is_answered_or_refused_and_changes_nothing(place):
    rng = random.Random(1)
    for _ in range(500):
        ask(place.database, " ".join(rng.choices(WORDS.split(), k=rng.randint(1, 30))))


def test_a_process_that_dies_or_does_not_answer_is_replaced(place, monkeypatch):
    first = place.worker()
    first.suspend()  # as if it were busy in one endless instruction, which SQLite cannot interrupt
    monkeypatch.setattr("mini_agentic_rl.recipes.sql.tool.GRACE", 0.2)
    with pytest.raises(QueryError, match=r"took longer than 0\.05 s"):
        place.database.query("SELECT 1 FROM drug")
    monkeypatch.undo()
    assert not first.is_running()
    assert place.database.query("SELECT count(*) FROM drug").rows == ((300,),)
    second = place.worker()
    second.kill()
    while psutil.pid_exists(second.pid):  # until the thread that waits for it has reaped it
        time.sleep(0.01)
    assert place.database.query("SELECT count(*) FROM drug").rows == ((300,),)


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits are those of Unix")
def test_the_process_of_a_database_may_write_no_file(place):
    worker = place.worker()
    assert worker.rlimit(psutil.RLIMIT_FSIZE) == (0, 0)
    assert worker.rlimit(psutil.RLIMIT_AS)[0] < 8 << 30
