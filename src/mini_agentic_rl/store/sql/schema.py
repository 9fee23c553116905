"""The tables of the SQL store in their newest version, and the migrations from older versions.

A new version adds a function at the end of `MIGRATIONS` and makes the same change in the tables. A migration spells its
SQL out instead of reading these tables, which later versions change.

Texts named `*_json` hold JSON. `number` columns order rows as they were stored. `queue_position` is null outside of
the queue, `deadline` is null for an attempt that no limit can end. `step` and `group_id` are `step` and `group` of the
rollout's metadata. `reward` of a span is the reward that it carries; of a rollout, that of the last reward span of its
latest attempt.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any, Final

from ..base import LightningStoreError
from ..listing import LLM_CALL_SPAN, step_and_group, stored_reward
from .session import Session

logger = logging.getLogger(__name__)

TYPES: Final = {
    "sqlite": {"serial": "INTEGER NOT NULL PRIMARY KEY", "int": "INTEGER", "name": "VARCHAR", "nulls_last": ""},
    "postgresql": {
        "serial": "BIGSERIAL PRIMARY KEY",
        "int": "BIGINT",
        "name": 'VARCHAR COLLATE "C"',
        "nulls_last": " NULLS LAST",
    },
}
"""Words of the tables in each dialect. `serial`: a number that the database assigns in ascending order. `name`: a text
that is compared and ordered by code points, whatever the locale of the database. `nulls_last`: SQLite's default."""

_TABLES: Final = {
    "agl_rollouts": """
        rollout_id {name} NOT NULL UNIQUE
        status {name} NOT NULL
        mode {name}
        resources_id {name}
        start_time FLOAT NOT NULL
        end_time FLOAT
        step {int}
        group_id {name}
        reward FLOAT
        input_json TEXT NOT NULL
        config_json TEXT NOT NULL
        metadata_json TEXT NOT NULL
        attempts {int} NOT NULL
        queue_position {int}
    """,
    "agl_attempts": """
        rollout_id {name} NOT NULL
        attempt_id {name} NOT NULL
        sequence_id {int} NOT NULL
        status {name} NOT NULL
        start_time FLOAT NOT NULL
        end_time FLOAT
        worker_id {name}
        last_heartbeat_time FLOAT
        metadata_json TEXT NOT NULL
        last_span_number {int} NOT NULL
        deadline FLOAT
        UNIQUE (rollout_id, sequence_id)
        UNIQUE (rollout_id, attempt_id)
    """,
    "agl_spans": """
        rollout_id {name} NOT NULL
        attempt_id {name} NOT NULL
        sequence_id {int} NOT NULL
        trace_id {name} NOT NULL
        span_id {name} NOT NULL
        parent_id {name}
        name {name} NOT NULL
        start_time FLOAT
        end_time FLOAT
        reward FLOAT
        body_json TEXT NOT NULL
        UNIQUE (rollout_id, attempt_id, span_id)
    """,
    "agl_resources": """
        resources_id {name} NOT NULL UNIQUE
        create_time FLOAT NOT NULL
        update_time FLOAT NOT NULL
        version {int} NOT NULL
        resources_json TEXT NOT NULL
        write_number {int} NOT NULL
    """,
    "agl_workers": """
        worker_id {name} NOT NULL UNIQUE
        status {name} NOT NULL
        heartbeat_stats_json TEXT NOT NULL
        last_heartbeat_time FLOAT
        last_dequeue_time FLOAT
        last_busy_time FLOAT
        last_idle_time FLOAT
        current_rollout_id {name}
        current_attempt_id {name}
    """,
    "agl_outcomes": """
        key {name} NOT NULL UNIQUE
        outcome_json TEXT NOT NULL
    """,
}
"""The columns of each table after `number`, and its constraints."""
_INDEXES: Final = (
    "agl_rollouts_by_status ON agl_rollouts (status, number)",
    "agl_rollouts_by_start ON agl_rollouts (start_time, number)",
    "agl_rollouts_last_ended ON agl_rollouts (status, end_time DESC{nulls_last}, number)",
    "agl_rollouts_queue ON agl_rollouts (queue_position) WHERE queue_position IS NOT NULL",
    "agl_rollouts_by_step ON agl_rollouts (step, number) WHERE step IS NOT NULL",
    "agl_rollouts_by_group ON agl_rollouts (group_id, number) WHERE group_id IS NOT NULL",
    "agl_attempts_deadline ON agl_attempts (deadline) WHERE deadline IS NOT NULL",
    "ix_agl_resources_write_number ON agl_resources (write_number)",
)
COLUMNS: Final = {
    table: tuple(line.split()[0] for line in lines.split("\n") if line.strip() and "UNIQUE (" not in line)
    for table, lines in _TABLES.items()
}
"""Names of the columns of each table after `number`."""


def _create_tables(session: Session) -> None:
    words = TYPES[session.dialect]
    session.run("CREATE TABLE agl_schema (version INTEGER NOT NULL PRIMARY KEY)")
    session.run("INSERT INTO agl_schema (version) VALUES (:version)", {"version": SCHEMA_VERSION})
    for table, lines in _TABLES.items():
        parts = ["number {serial}", *(line.strip() for line in lines.split("\n") if line.strip())]
        session.run(f"CREATE TABLE {table} ({', '.join(parts)})".format(**words))
    for index in _INDEXES:
        session.run(f"CREATE INDEX {index}".format(**words))


def _indexes_that_are_used(session: Session) -> None:
    """Add an index for lists sorted by start time, and drop one for spans, which are sorted when they are read."""
    session.run("CREATE INDEX agl_rollouts_by_start ON agl_rollouts (start_time, number)")
    session.run("DROP INDEX agl_spans_in_order")


def _index_of_those_that_ended_last(session: Session) -> None:
    """Add an index for the rollouts that ended last."""
    nulls_last = TYPES[session.dialect]["nulls_last"]
    session.run(f"CREATE INDEX agl_rollouts_last_ended ON agl_rollouts (status, end_time DESC{nulls_last}, number)")


def _outcomes_by_key(session: Session) -> None:
    """Add the table of the outcomes of writes, by idempotency key."""
    columns = "number {serial}, key {name} NOT NULL UNIQUE, outcome_json TEXT NOT NULL"
    session.run(f"CREATE TABLE agl_outcomes ({columns.format(**TYPES[session.dialect])})")


_MIGRATED_AT_ONCE: Final = 1000
"""Rows that a migration reads at once."""


def _columns_for_listings(session: Session) -> None:
    """Add step, group and reward, which listings filter by, and fill them from the metadata and the spans."""
    for table, column in (
        ("agl_rollouts", "step {int}"),
        ("agl_rollouts", "group_id {name}"),
        ("agl_rollouts", "reward FLOAT"),
        ("agl_spans", "reward FLOAT"),
    ):
        session.run(f"ALTER TABLE {table} ADD COLUMN {column.format(**TYPES[session.dialect])}")
    _fill(
        session,
        "SELECT number, metadata_json FROM agl_rollouts WHERE metadata_json <> '{}'",
        "UPDATE agl_rollouts SET step = :step, group_id = :group_id WHERE number = :number",
        lambda row: dict(zip(("step", "group_id"), step_and_group(json.loads(row["metadata_json"])), strict=True)),
    )
    _fill(
        session,
        "SELECT number, name, body_json FROM agl_spans "
        f"WHERE name <> '{LLM_CALL_SPAN}' AND instr(body_json, 'reward') > 0",
        "UPDATE agl_spans SET reward = :reward WHERE number = :number",
        lambda row: {"reward": stored_reward(row["name"], json.loads(row["body_json"])["attributes"])},
    )
    session.run(
        "UPDATE agl_rollouts SET reward = (SELECT s.reward FROM agl_spans s JOIN agl_attempts a ON "
        "a.rollout_id = s.rollout_id AND a.attempt_id = s.attempt_id WHERE s.rollout_id = agl_rollouts.rollout_id "
        "AND a.sequence_id = agl_rollouts.attempts AND s.reward IS NOT NULL "
        "ORDER BY s.sequence_id DESC, s.number DESC LIMIT 1) "
        "WHERE rollout_id IN (SELECT rollout_id FROM agl_spans WHERE reward IS NOT NULL)"
    )
    for name, column in (("agl_rollouts_by_step", "step"), ("agl_rollouts_by_group", "group_id")):
        session.run(f"CREATE INDEX {name} ON agl_rollouts ({column}, number) WHERE {column} IS NOT NULL")


def _fill(session: Session, query: str, change: str, values_of: Callable[[Any], dict[str, Any]]) -> None:
    """Update rows by values that are computed from what is stored; a damaged row is left as it is.

    Args:
        query: Selects `number` and the columns that `values_of` reads; ends in a condition.
        change: Updates one row.
        values_of: Returns the new values of a row.
    """
    last = -1
    page = f"{query} AND number > :last ORDER BY number LIMIT {_MIGRATED_AT_ONCE}"
    while rows := session.rows(page, {"last": last}):
        last = rows[-1]["number"]
        changed = []
        for row in rows:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                values = values_of(row)
                if any(value is not None for value in values.values()):
                    changed.append({"number": row["number"], **values})
        session.run_many(change, changed)


MIGRATIONS: Final[tuple[Callable[[Session], None], ...]] = (
    _indexes_that_are_used,
    _index_of_those_that_ended_last,
    _outcomes_by_key,
    _columns_for_listings,
)
"""Migrations; the one at index n - 1 leads from version n to version n + 1."""
SCHEMA_VERSION: Final = len(MIGRATIONS) + 1


def prepare(session: Session, name: str) -> None:
    """Create the tables, or bring them to this version, in the running transaction, which excludes other writers.

    Args:
        session: In a transaction.
        name: Name of the store in messages.

    Raises:
        LightningStoreError: the database holds something else, or a store of a newer version.
    """
    present = session.tables()
    others = present if session.dialect == "sqlite" else present & set(_TABLES)  # PostgreSQL may hold other tables
    if "agl_schema" not in present and not others:
        _create_tables(session)
        return
    version = version_of(session, name)
    if version == SCHEMA_VERSION:
        return
    for migrate in MIGRATIONS[version - 1 :]:
        migrate(session)
    session.run("UPDATE agl_schema SET version = :version", {"version": SCHEMA_VERSION})
    logger.info("the store %s was brought from schema version %d to %d", name, version, SCHEMA_VERSION)


def version_of(session: Session, name: str) -> int:
    """Return the schema version of a store.

    Raises:
        LightningStoreError: the database holds no store, or one of a newer version.
    """
    if "agl_schema" not in session.tables():
        raise LightningStoreError(f"{name} is a database, but not of a store: choose another store path or URL")
    version = session.scalar("SELECT version FROM agl_schema")
    if version is None or not 1 <= version <= SCHEMA_VERSION:
        raise LightningStoreError(
            f"the store {name} has schema version {version}, this program reads versions up to {SCHEMA_VERSION}: "
            "use the program that wrote it, or choose another store path or URL"
        )
    return int(version)
