"""The read-only SQL tool as an agent uses it: rows come back, and refusals say what to do instead."""

from __future__ import annotations

import pickle
import sqlite3
import sys
import threading

import pytest

from mini_agentic_rl.recipes.sql.tool import QUICK, QueryError, QueryLimits, QueryResult, SqlDatabase, SqlToolError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("sql") / "shop # 1.db"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price REAL, photo BLOB);  \n"
        "CREATE VIEW cheap AS SELECT name FROM item WHERE price < 2;"
    )
    rows = [(number, f"thing {number}", number / 2, b"\x00\x01") for number in range(1, 301)]
    connection.executemany("INSERT INTO item VALUES (?, ?, ?, ?)", [*rows, (301, None, None, None)])
    connection.commit()
    connection.close()
    return path


@pytest.fixture(scope="module")
def database(path):
    database = SqlDatabase(path, QueryLimits(timeout_seconds=0.5, max_rows=20))
    yield database
    database.close()


def test_a_select_gives_its_rows(database):
    found = database.query("SELECT id, name, price FROM item WHERE id < 3 ORDER BY id DESC")
    assert found == QueryResult(
        ("id", "name", "price"), ((2, "thing 2", 1.0), (1, "thing 1", 0.5)), tables=frozenset({"item"})
    )
    assert found.text() == "2 | thing 2 | 1\n1 | thing 1 | 0.5"


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("WITH x AS (SELECT price FROM item) SELECT ROUND(AVG(price), 1) FROM x", ((75.3,),)),
        ("WITH x AS (SELECT price FROM item GROUP BY price) SELECT count(*) > 9 FROM x", ((1,),)),
        ("SELECT name FROM cheap UNION SELECT 'x' ORDER BY 1 LIMIT 2", (("thing 1",), ("thing 2",))),
        ("select count(*) from item where name like '%99' ;", ((3,),)),
        ("SELECT name, photo FROM item WHERE id IN (1, 301) -- both", (("thing 1", "<2 bytes>"), (None, None))),
        ("SELECT rank() OVER (ORDER BY price) FROM item WHERE id BETWEEN 1 AND 2", ((1,), (2,))),
        ("SELECT '名字', '; DROP TABLE item'", (("名字", "; DROP TABLE item"),)),
    ],
)
def test_ordinary_sql_works(database, sql, rows):
    assert database.query(sql).rows == rows


def test_rows_and_bytes_beyond_the_limits_are_left_out_and_the_result_says_so(database):
    found = database.query("SELECT id FROM item")
    assert (len(found.rows), found.truncated) == (20, True)
    assert found.text().endswith("[more rows: narrow it]")
    assert not database.query("SELECT id FROM item LIMIT 20").truncated
    assert len(found.text(max_characters=30)) < 60
    found = database.query(f"SELECT a || a || a || a FROM (SELECT '{'x' * 1000}' AS a FROM item LIMIT 20)")
    assert (len(found.rows), found.truncated) == (16, True)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("DROP TABLE item", "DROP is not allowed: the database can only be read; write one SELECT statement"),
        ("PRAGMA table_info(item)", "call schema to see tables and columns"),
        ("SELECT 1; SELECT 2", "send one SELECT statement at a time"),
        (
            "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT * FROM n",
            "recursive WITH is not allowed; use joins",
        ),
        ("SELECT colour FROM item", "no such column: colour; call schema to see tables and columns"),
        ("SELECT * FROM sqlite_master", "table sqlite_master cannot be read; there are cheap, item"),
        ("SELECT randomblob(9) FROM item", "function randomblob is not allowed"),
        ("SELECT count(*) FROM item a, item b, item c, item d", "took longer than 0.5 s; join on ids"),
        ("SELECT name FRM item", "write one SQLite SELECT statement"),
        ("x" * 3000, "more than 2000; write a shorter one"),
        ("", "the query is empty; write one SELECT statement"),
        ("/**/" * 490, "this is no query"),
    ],
)
def test_a_refusal_says_what_to_do_instead(database, sql, told):
    with pytest.raises(QueryError) as refusal:
        database.query(sql)
    assert told in str(refusal.value)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="its sqlite3 cannot set SQLite's limits")
@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT name FROM item WHERE name LIKE '" + "%a" * 99 + "'", "pattern too complex; make shorter values"),
        ("SELECT group_concat(a.name) FROM item a, item b", "too big; make shorter values"),
        ("SELECT 1" + " UNION ALL SELECT 1" * 60, "too many terms in compound SELECT"),
        ("SELECT 1" + " + 1" * 400, "Expression tree is too large"),
    ],
)
def test_values_patterns_and_expressions_have_a_size(database, sql, told):
    with pytest.raises(QueryError, match=told):
        database.query(sql)


def test_a_query_that_is_asked_again_is_looked_at_again(database):
    for _ in range(2):
        assert database.query("SELECT count(*) FROM item").tables == {"item"}
        with pytest.raises(QueryError, match="function random is not allowed"):
            database.query("SELECT random() FROM item")


def test_the_schema_and_empty_results_are_shown(database):
    assert database.query("SELECT name FROM item WHERE id = 999").text() == "no rows"
    assert database.query("SELECT name FROM item WHERE id = 301").text() == "NULL"
    assert database.compact_schema() == "item(id,name,price,photo)\ncheap(name)"
    assert database.compact_schema("cheap") == "item(id,name,price,photo)"
    assert database.describe() == "tables: item, cheap"
    told = database.describe(" Item ")
    assert told.startswith("CREATE TABLE item")
    assert "1 | thing 1 | 0.5" in told
    assert database.describe("item; DROP TABLE item") == (
        "error: there is no table item; DROP TABLE item; there are item, cheap"
    )


def test_a_database_can_be_sent_to_another_process(database):
    database.query("SELECT 1 FROM item")
    copy = pickle.loads(pickle.dumps(database))
    assert (copy.path, copy.limits) == (database.path, database.limits)
    assert copy.query("SELECT count(*) FROM item").rows == ((301,),)
    copy.close()


def test_a_file_that_is_not_there_or_no_database_is_an_error(tmp_path):
    with pytest.raises(SqlToolError, match=r"nowhere\.db cannot be opened"):
        SqlDatabase(tmp_path / "nowhere.db").query("SELECT 1")
    text = tmp_path / "text.db"
    text.write_text("no database " * 100)
    with pytest.raises(SqlToolError, match=r"text\.db cannot be"):
        SqlDatabase(text).describe()


def test_a_file_that_grows_is_read_as_it_is(tmp_path):
    path = tmp_path / "growing.db"
    writer = sqlite3.connect(path)
    writer.execute("CREATE TABLE item (id)")
    writer.commit()
    database = SqlDatabase(path)
    assert database.query("SELECT count(*) FROM item").rows == ((0,),)
    writer.execute("INSERT INTO item VALUES (1)")
    writer.commit()
    assert database.query("SELECT count(*) FROM item").rows == ((1,),)
    writer.close()
    database.close()


SLOW = "SELECT count(*) FROM item a, item b, item c, item d WHERE a.price + b.price + c.price + d.price < 0"


def test_slow_queries_do_not_delay_a_quick_one(database):
    ended: list[str] = []

    def ask_slowly() -> None:
        with pytest.raises(QueryError, match=r"took longer than 0\.5 s"):
            database.query(SLOW)
        ended.append("slow")

    threads = [threading.Thread(target=ask_slowly) for _ in range(QUICK + 1)]
    for thread in threads:
        thread.start()
    assert database.query("SELECT name FROM item WHERE id = 1").rows == (("thing 1",),)
    ended.append("quick")
    for thread in threads:
        thread.join()
    assert ended.index("quick") < len(threads)  # with one pool for all it would be the last
    assert ended.count("slow") == len(threads)


def test_a_query_beyond_the_limit_of_the_quick_pool_is_answered_by_the_slow_one(database, monkeypatch):
    monkeypatch.setattr(sys.modules[SqlDatabase.__module__], "QUICK_SECONDS", 1e-4)
    assert database.query("SELECT count(*) FROM item a, item b WHERE a.id + b.id > 0").rows == ((301 * 301,),)


def test_a_query_whose_turn_does_not_come_is_refused(database, monkeypatch):
    monkeypatch.setattr(sys.modules[SqlDatabase.__module__], "MOST_WAIT", 0.0)
    processes = [database._quick.get() for _ in range(QUICK)]
    with pytest.raises(QueryError, match="busy"):
        database.query("SELECT 1")
    for process in processes:
        database._quick.put(process)
    assert database.query("SELECT 1").rows == ((1,),)
