"""Queries that mean harm: families written by hand, and variations that a generator makes of them.

What a family must lead to: "refused", or "bounded" where an answer is fine as long as it comes in time and in size.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple


class Hostile(NamedTuple):
    sql: str
    outcome: str


def hostile_queries(secret: str, target: str, count: int, seed: int = 0) -> list[Hostile]:
    """At least `count` different ones. `secret` is a database file that holds a secret, `target` a file to make."""
    forbidden = _writing(secret, target)
    written = [Hostile(sql, "refused") for sql in forbidden]
    written += [Hostile(sql, "refused") for sql in ("", " ;; ; ", "-- nothing", "/* nothing */", "VALUES (1)")]
    written += [Hostile(sql, "bounded") for sql in _bombs()]
    found = dict.fromkeys(written)
    rng = random.Random(seed)
    while len(found) < count:
        found[Hostile(_varied(rng, rng.choice(forbidden)), "refused")] = None
    return list(found)


def _writing(secret: str, target: str) -> list[str]:
    """What writes, reads something else, tells of the connection, or is no single SELECT."""
    return [
        "DROP TABLE drug",
        "DROP TABLE IF EXISTS drug",
        "DELETE FROM drug",
        "UPDATE drug SET price = 0",
        "INSERT INTO drug VALUES (999, 'x', 'x', 'x', 'x', 'x', 'x', 1, 1)",
        "REPLACE INTO drug (id) VALUES (1)",
        "CREATE TABLE evil (a)",
        "CREATE TABLE evil AS SELECT * FROM drug",
        "CREATE TEMP TABLE evil AS SELECT * FROM drug",
        "CREATE VIEW evil AS SELECT * FROM drug",
        "CREATE INDEX evil ON drug(price)",
        "CREATE TRIGGER evil AFTER INSERT ON drug BEGIN DELETE FROM drug; END",
        "CREATE VIRTUAL TABLE evil USING fts5(a)",
        "CREATE VIRTUAL TABLE temp.evil USING rtree(a, b, c)",
        "ALTER TABLE drug RENAME TO evil",
        "ALTER TABLE drug ADD COLUMN evil",
        "VACUUM",
        f"VACUUM INTO '{target}'",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "BEGIN EXCLUSIVE",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT evil",
        f"ATTACH '{secret}' AS other",
        f"ATTACH DATABASE '{secret}' AS other",
        f"ATTACH '{target}' AS other",
        f"ATTACH 'file:{target}?mode=rwc' AS other",
        "DETACH main",
        "SELECT * FROM other.secret",
        "SELECT * FROM secret",
        "PRAGMA table_info(drug)",
        "PRAGMA writable_schema = ON",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = DELETE",
        f"PRAGMA temp_store_directory = '{target}'",
        "PRAGMA database_list",
        "EXPLAIN SELECT * FROM drug",
        "EXPLAIN QUERY PLAN SELECT * FROM drug",
        "SELECT * FROM pragma_database_list",
        "SELECT * FROM pragma_table_info('drug')",
        "SELECT file FROM pragma_database_list()",
        "SELECT * FROM sqlite_master",
        "SELECT sql FROM sqlite_schema",
        "SELECT count(*) FROM sqlite_master",
        "SELECT * FROM sqlite_temp_master",
        "SELECT * FROM main.sqlite_master",
        "SELECT * FROM sqlite_stmt",
        "SELECT * FROM dbstat",
        "SELECT * FROM json_each('[1,2]')",
        "SELECT * FROM json_tree('{}')",
        "SELECT * FROM generate_series(1, 10)",
        "SELECT * FROM fts3tokenize('simple', 'a')",
        "SELECT load_extension('evil')",
        "SELECT load_extension('evil', 'sqlite3_extension_init')",
        f"SELECT readfile('{secret}')",
        f"SELECT writefile('{target}', 'x')",
        f"SELECT edit('{secret}')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT sqlite_version()",
        "SELECT sqlite_compileoption_get(0)",
        "SELECT last_insert_rowid(), changes(), total_changes()",
        "SELECT random()",
        "SELECT randomblob(1000000000)",
        "SELECT zeroblob(1000000000)",
        "SELECT hex(zeroblob(100000000))",
        "SELECT printf('%.1000000000c', 'x')",
        "SELECT format('%100000000d', 1)",
        "SELECT char(65, 66)",
        "SELECT quote(name) FROM drug",
        "SELECT hex(name) FROM drug",
        "SELECT unhex('00')",
        "SELECT json_group_array(name) FROM drug",
        "SELECT json_object('a', name) FROM drug",
        "SELECT name FROM drug WHERE name REGEXP '(a+)+b'",
        "SELECT name FROM drug WHERE name MATCH 'a'",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "WITH n(i) AS (SELECT 1 UNION SELECT i * 2 FROM n) SELECT i FROM n",
        "WITH n(t) AS (SELECT 'x' UNION ALL SELECT t || t FROM n) SELECT length(t) FROM n",
        "SELECT 1; SELECT 2",
        "SELECT * FROM drug; DROP TABLE drug",
        "SELECT 1; PRAGMA writable_schema = ON",
        f"SELECT 1; ATTACH '{target}' AS other; CREATE TABLE other.evil (a)",
        "WITH x AS (SELECT 1) DELETE FROM drug",
        "WITH x AS (SELECT 1) INSERT INTO drug (id) SELECT 1",
        "WITH x AS (SELECT 1) UPDATE drug SET price = 0",
        "DELETE FROM drug RETURNING *",
        "SELECT ?",
        "SELECT :name",
        "hello",
        "SELECT",
        "SELECT * FROM",
        "SELECT (((((1",
        "SELECT 'unfinished",
        "SELECT \x00 1",
        "SELECT name FROM drug WHERE name = '\ud800'",
        "SELECT " + "(" * 300 + "1" + ")" * 300,
        "SELECT " + "NOT " * 450 + "1",
        "SELECT " + "-(" * 200 + "1" + ")" * 200,
        "SELECT * FROM " + "(SELECT * FROM " * 40 + "drug" + ")" * 40,
        "SELECT 'a" + "a" * 5000 + "'",
        "SELECT no_such_column FROM drug",
        "SELECT * FROM no_such_table",
        "SELECT name FROM drug WHERE no_such_function(name)",
    ]


def _bombs() -> list[str]:
    """What takes long, or grows, if nothing holds it back."""
    joined = ", ".join(f"drug d{number}" for number in range(6))
    doubled = "SELECT name AS t FROM drug"
    for _ in range(18):
        doubled = f"SELECT t || t AS t FROM ({doubled})"
    replaced = "name"
    for _ in range(12):
        replaced = f"replace({replaced}, 'a', 'aaaaaaaaaaaaaaaaaaaa')"
    return [
        f"SELECT count(*) FROM {joined}",
        f"SELECT * FROM {joined}",
        f"SELECT d0.name FROM {joined} ORDER BY d1.price, d2.price",
        f"SELECT DISTINCT d0.name || d1.name || d2.name FROM {joined}",
        f"SELECT d0.name, group_concat(d1.name || d2.name) FROM {joined} GROUP BY d0.id, d3.id",
        f"SELECT max(d0.name || d1.name || d2.name || d3.name) FROM {joined}",
        "SELECT a.name FROM drug a, drug b, drug c UNION SELECT b.name FROM drug a, drug b, drug c",
        "SELECT a.name FROM drug a, drug b, drug c EXCEPT SELECT name FROM drug",
        "SELECT a.name, rank() OVER (ORDER BY b.price, c.price) FROM drug a, drug b, drug c",
        "SELECT count(*) FROM drug a WHERE (SELECT count(*) FROM drug b, drug c, drug d WHERE d.id + c.id > a.id) > 0",
        "SELECT * FROM drug a NATURAL JOIN drug b, drug c, drug d, drug e ORDER BY 1, 2, 3",
        "SELECT *, *, *, *, * FROM drug a, drug b, drug c ORDER BY a.price DESC",
        doubled,
        f"SELECT length(t) FROM ({doubled})",
        f"SELECT {replaced} FROM drug",
        f"SELECT length({replaced}) FROM drug",
        "SELECT group_concat(a.name) FROM drug a, drug b, drug c",
        "SELECT group_concat(a.name, b.name) FROM drug a, drug b, drug c",
        "SELECT sum(a.price * b.price) FROM drug a, drug b, drug c, drug d",
        "SELECT a.name FROM drug a, drug b, drug c WHERE a.name || b.name LIKE '%a%b%c%d%e%f%g%' || c.name",
        "SELECT count(*) FROM drug a, drug b, drug c WHERE a.name GLOB '*a*' || b.name || '*'",
        "SELECT strftime('%s', a.year || '-01-01') FROM drug a, drug b, drug c, drug d",
        "SELECT 9e999 - 9e999, 1e308 * 10, -9223372036854775808, x'00ff'",
        "SELECT pow(10, 308), exp(700), 1 / 0",
        "SELECT " + "CASE WHEN 1 THEN " * 90 + "1" + " END" * 90,
        "SELECT 1" + " UNION ALL SELECT 1" * 60,
        "SELECT 1" + " + 1" * 400,
        "SELECT name FROM drug WHERE name LIKE '" + "%a" * 200 + "'",
        "SELECT name FROM drug WHERE name GLOB '" + "*a" * 200 + "'",
    ]


def _varied(rng: random.Random, sql: str) -> str:
    """The same in another dress: none of them turns a forbidden query into an allowed one."""
    for change in rng.sample(_CHANGES, rng.randint(1, 3)):
        sql = change(rng, sql)
    return sql


def _cases(rng: random.Random, sql: str) -> str:
    if "'" in sql:
        return sql
    return "".join(rng.choice((str.upper, str.lower))(character) for character in sql)


def _comments(rng: random.Random, sql: str) -> str:
    words = sql.split(" ")
    at = rng.randrange(len(words))
    return " ".join([*words[:at], rng.choice(("/**/", "/*x*/", "--x\n")), *words[at:]])


def _spaces(rng: random.Random, sql: str) -> str:
    return sql.replace(" ", rng.choice(("\n", "\t", "  ", "\r\n")), rng.randint(1, 3))


def _second(rng: random.Random, sql: str) -> str:
    return rng.choice(("SELECT 1; ", "SELECT name FROM drug LIMIT 1;\n", "SELECT count(*) FROM drug;/**/")) + sql + " ;"


def _followed(rng: random.Random, sql: str) -> str:
    return sql + rng.choice((";", " ;;", "; SELECT 1", "; DROP TABLE drug", " -- x", "\n; VACUUM"))


def _inside(rng: random.Random, sql: str) -> str:
    return rng.choice(
        (
            f"SELECT * FROM ({sql})",
            f"WITH x AS ({sql}) SELECT * FROM x",
            f"SELECT name FROM drug WHERE id IN ({sql})",
            f"SELECT ({sql}) FROM drug, no_such_table",
            f"SELECT name FROM drug UNION ALL {sql}",
            f"EXPLAIN {sql}",
        )
    )


def _prefixed(rng: random.Random, sql: str) -> str:
    return rng.choice(("; ", "\ufeff", "\n\n", "/*SELECT*/ ", "--SELECT\n")) + sql


_CHANGES = (_cases, _comments, _spaces, _second, _followed, _inside, _prefixed)


_WORDS = (
    "SELECT FROM drug disease WHERE name price ( ) , ; * || = < 'a' 1 DROP TABLE INSERT INTO UNION ALL WITH AS x "
    "RECURSIVE JOIN ON id GROUP BY ORDER LIMIT HAVING NOT IN EXISTS CASE WHEN THEN END ATTACH PRAGMA count( max( "
    'replace( randomblob( load_extension( -- /* */ " [ ] ` NULL CAST( AS BLOB) DELETE UPDATE SET VALUES'
)


def fuzzed(count: int, seed: int = 1) -> Iterator[str]:
    """Words of SQL in any order: almost none is a query, and nothing must come of any."""
    rng = random.Random(seed)
    words = _WORDS.split()
    for _ in range(count):
        yield " ".join(rng.choices(words, k=rng.randint(1, 30)))
