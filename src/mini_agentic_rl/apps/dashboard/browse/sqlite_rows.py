"""The statements of `SqliteBrowser`, and the objects of their rows. The tables are those of `store/sql/schema.py`."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ....emitter import get_reward_value
from ....semconv import CompletionSpanAttributes
from ....types import Attempt, ResourcesUpdate, Rollout, Span, Worker
from .base import GROUP_KEY, PREVIEW, GroupRow, RolloutFilter, RolloutRow, reason_of, rl_step, spellings, task_preview

logger = logging.getLogger(__name__)


# Facts that a list filters by and that no column of the store holds: each rollout's reward, group and step.
#
# They stand inside JSON texts, of which a store of 100,000 rollouts has a gigabyte. So a thread reads each rollout and
# each span once, in the order in which they were stored, and keeps what it finds in a file of its own, which readers
# attach. It never writes to the store.


_STEP: Final = 2000
"""Rows that are read at once, between which other threads get their turn."""
_REST_SECONDS: Final = 0.02
_WATCH_SECONDS: Final = 0.5

_SCHEMA: Final = """
PRAGMA journal_mode=WAL;
PRAGMA synchronous=OFF;
CREATE TABLE rollout_facts (number INTEGER PRIMARY KEY, rollout_id TEXT UNIQUE, group_id TEXT, step INTEGER);
CREATE INDEX rollout_facts_by_group ON rollout_facts (group_id, number) WHERE group_id IS NOT NULL;
CREATE TABLE reward_facts (rollout_id TEXT PRIMARY KEY, attempt_id TEXT, sequence_id INTEGER, reward REAL)
  WITHOUT ROWID;
"""
_ROLLOUTS: Final = "SELECT number, rollout_id, metadata_json FROM agl_rollouts WHERE number > ? ORDER BY number LIMIT ?"
MAY_REWARD: Final = f"name <> '{CompletionSpanAttributes.SPAN_NAME}' AND instr(body_json, 'reward') > 0"
"""Condition of SQL that every span with a reward passes."""
_SPANS: Final = f"""
SELECT number, rollout_id, attempt_id, sequence_id, name, CASE WHEN {MAY_REWARD} THEN body_json END
FROM agl_spans WHERE number > ? ORDER BY number LIMIT ?
"""
_PUT_ROLLOUT: Final = "INSERT OR REPLACE INTO rollout_facts VALUES (?, ?, ?, ?)"
_PUT_REWARD: Final = """
INSERT INTO reward_facts VALUES (?, ?, ?, ?) ON CONFLICT (rollout_id) DO UPDATE SET attempt_id = excluded.attempt_id,
sequence_id = excluded.sequence_id, reward = excluded.reward WHERE excluded.sequence_id >= sequence_id
"""


class StoredSpan:
    """A span as far as its reward goes: its name and its attributes."""

    def __init__(self, name: str, attributes: dict[str, Any]) -> None:
        self.name = name
        self.attributes = attributes


def reward_in(name: str, body: str) -> float | None:
    """Return the reward on a span that is stored as this text, or None."""
    try:
        attributes = json.loads(body).get("attributes") or {}
        return get_reward_value(StoredSpan(name, attributes))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


class StoreFacts:
    """The file of facts about a store, and the thread that fills it.

    Args:
        path: the file, which is made.
        connect: opens the store for reading.
    """

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self.path = path
        self._connect = connect
        self._stop = threading.Event()
        self.rollouts = 0
        """Number of the last rollout that was read."""
        self.spans = 0
        """Number of the last span that was read."""
        self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._file.executescript(_SCHEMA)
        self._thread = threading.Thread(target=self._fill, name="dashboard facts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close the file."""
        self._stop.set()
        self._thread.join()
        self._file.close()

    def _fill(self) -> None:
        store: sqlite3.Connection | None = None
        try:
            while not self._stop.is_set():
                try:
                    store = store or self._connect()
                    found = self._read_rollouts(store) + self._read_spans(store)
                    wait = _WATCH_SECONDS if found == 0 else _REST_SECONDS
                except (
                    sqlite3.Error
                ) as error:  # it is being made, replaced, or written by one that lacks the tables yet
                    logger.debug("the facts of the dashboard wait: %s", error)
                    wait = _WATCH_SECONDS
                self._stop.wait(wait)
        finally:
            if store is not None:
                store.close()

    def _read_rollouts(self, store: sqlite3.Connection) -> int:
        rows = store.execute(_ROLLOUTS, (self.rollouts, _STEP)).fetchall()
        if rows:
            self._write(_PUT_ROLLOUT, [(number, one, *_group(text)) for number, one, text in rows])
            self.rollouts = int(rows[-1][0])
        return len(rows)

    def _read_spans(self, store: sqlite3.Connection) -> int:
        rows = store.execute(_SPANS, (self.spans, _STEP)).fetchall()
        found = []
        for _, rollout_id, attempt_id, sequence_id, name, body in rows:
            reward = None if body is None else reward_in(name, body)
            if reward is not None:
                found.append((rollout_id, attempt_id, sequence_id, reward))
        if found:
            self._write(_PUT_REWARD, found)
        if rows:
            self.spans = int(rows[-1][0])
        return len(rows)

    def _write(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        self._file.execute("BEGIN")
        self._file.executemany(statement, rows)
        self._file.execute("COMMIT")

    def wait(self, seconds: float) -> bool:
        """Return True once all that the store holds now was read, False after so many seconds."""
        end = time.monotonic() + seconds
        with_store = self._connect()
        try:
            rollouts = with_store.execute("SELECT max(number) FROM agl_rollouts").fetchone()[0] or 0
            spans = with_store.execute("SELECT max(number) FROM agl_spans").fetchone()[0] or 0
        finally:
            with_store.close()
        while self.rollouts < rollouts or self.spans < spans:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True


def _group(text: str) -> tuple[str | None, int | None]:
    """Return the group and the step of a rollout, from its metadata."""
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError):
        return None, None
    group, step = metadata.get(GROUP_KEY), metadata.get("step")
    return None if group is None else str(group), rl_step(step)


_CUT: Final = 20_000
"""Characters of a JSON text that a list reads: what is longer is shown by its beginning."""
_OUTER: Final = f"""
SELECT r.number, r.rollout_id, r.status, r.mode, r.start_time, r.end_time, substr(r.input_json, 1, {8 * PREVIEW}),
  r.attempts, a.worker_id, x.reward, f.group_id, f.step, substr(r.metadata_json, 1, {_CUT}),
  substr(a.metadata_json, 1, {_CUT})
FROM {{inner}} r
LEFT JOIN agl_attempts a ON a.rollout_id = r.rollout_id AND a.sequence_id = r.attempts
LEFT JOIN facts.reward_facts x ON x.rollout_id = r.rollout_id AND x.attempt_id = a.attempt_id
LEFT JOIN facts.rollout_facts f ON f.rollout_id = r.rollout_id
"""
_LARGEST: Final = 2**62
_MAY_REWARD: Final = MAY_REWARD.replace("name", "s.name", 1).replace("body_json", "s.body_json")


def cursor_of(text: str | None) -> int:
    """Return the number below which a page begins.

    Raises:
        ValueError: no page ends there.
    """
    if text is None:
        return _LARGEST
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ValueError(f"cursor {text[:40]!r}: expected that of an earlier page")
    return int(text)


def rollouts_before(
    connection: sqlite3.Connection, wanted: RolloutFilter, before: int, looked_at: int, limit: int
) -> tuple[list[RolloutRow], int | None]:
    """Return rollouts that pass among the `looked_at` before a number, the newest first, and where to go on; None at
    the end."""
    inner, inner_values = _inner(wanted, before, looked_at)
    conditions, values = _conditions(wanted)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    statement = f"{_OUTER.format(inner=f'({inner})')} {where} ORDER BY r.number DESC LIMIT ?"
    found = [_line(row) for row in connection.execute(statement, (*inner_values, *values, limit))]
    if len(found) == limit:
        return found, found[-1]["number"]
    last, count = connection.execute(f"SELECT min(number), count(*) FROM ({inner})", inner_values).fetchone()
    return found, last if count == looked_at else None


def rollouts_of(connection: sqlite3.Connection, ids: Sequence[str]) -> list[RolloutRow]:
    """Return the lines of these rollouts."""
    inner = "(SELECT * FROM agl_rollouts WHERE rollout_id IN (SELECT value FROM json_each(?)))"
    statement = f"{_OUTER.format(inner=inner)} ORDER BY r.number"
    return [_line(row) for row in connection.execute(statement, (json.dumps(list(ids)),))]


def _inner(wanted: RolloutFilter, before: int, looked_at: int) -> tuple[str, list[Any]]:
    """Return the statement for the rollouts that are looked at: by the index of one status, else by their number."""
    if wanted.group or wanted.step is not None:
        which = "group_id = ?" if wanted.group else "step = ?"
        chosen = f"SELECT rollout_id FROM facts.rollout_facts WHERE {which} AND number < ? ORDER BY number DESC LIMIT ?"
        value = wanted.group or wanted.step
        return f"SELECT * FROM agl_rollouts WHERE rollout_id IN ({chosen})", [value, before, looked_at]
    one_status = wanted.status[0] if len(wanted.status) == 1 else None
    status = "" if one_status is None else "status = ? AND "
    values: list[Any] = [] if one_status is None else [one_status]
    return (
        f"SELECT * FROM agl_rollouts WHERE {status}number < ? ORDER BY number DESC LIMIT ?",
        [*values, before, looked_at],
    )


def _conditions(wanted: RolloutFilter) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []

    def add(condition: str, *given: Any) -> None:
        conditions.append(condition)
        values.extend(given)

    if wanted.status:
        add("r.status IN (SELECT value FROM json_each(?))", json.dumps(wanted.status))
    if wanted.mode:
        add("r.mode = ?", wanted.mode)
    if wanted.reward_min is not None:
        add("x.reward >= ?", wanted.reward_min)
    if wanted.reward_max is not None:
        add("x.reward <= ?", wanted.reward_max)
    if wanted.worker:
        add("instr(a.worker_id, ?) > 0", wanted.worker)
    if wanted.task:
        add("(instr(r.input_json, ?) > 0 OR instr(r.input_json, ?) > 0)", *spellings(wanted.task))
    if wanted.text:
        texts = spellings(wanted.text)
        columns = ("r.rollout_id", "r.input_json", "r.metadata_json", "coalesce(a.metadata_json, '')")
        tests = [f"instr({column}, ?) > 0 OR instr({column}, ?) > 0" for column in columns]
        spans = "SELECT 1 FROM agl_spans s WHERE s.rollout_id = r.rollout_id AND ({0} OR {0})"
        tests.append(f"EXISTS ({spans.format('instr(s.body_json, ?) > 0')})")
        add(f"({' OR '.join(tests)})", *(texts * (len(columns) + 1)))
    return conditions, values


def _line(row: Sequence[Any]) -> RolloutRow:
    number, rollout_id, status, mode, start, end, task, attempts, worker, reward, group, step, text, attempt = row
    metadata = _object(text)
    evaluation = metadata.get("evaluation")
    return RolloutRow(
        number=number,
        id=rollout_id,
        status=status,
        mode=mode,
        start=start,
        end=end,
        task=task_preview(task),
        attempts=attempts,
        worker=worker,
        reward=reward,
        group=group,
        step=step,
        evaluation=None if evaluation is None else str(evaluation),
        why=reason_of(metadata, None if attempt is None else _object(attempt)),
    )


def add_missing_rewards(connection: sqlite3.Connection, items: Sequence[RolloutRow]) -> None:
    """Read the rewards of rollouts that have ended and are not indexed yet."""
    missing = {item["id"]: item for item in items if item["reward"] is None and item["status"] == "succeeded"}
    statement = f"""
    SELECT s.rollout_id, s.name, s.body_json FROM agl_spans s
    JOIN agl_rollouts r ON r.rollout_id = s.rollout_id
    JOIN agl_attempts a ON a.rollout_id = r.rollout_id AND a.sequence_id = r.attempts AND a.attempt_id = s.attempt_id
    WHERE s.rollout_id IN (SELECT value FROM json_each(?)) AND {_MAY_REWARD}
    ORDER BY s.sequence_id, s.number
    """
    for rollout_id, name, body in connection.execute(statement, (json.dumps(list(missing)),)) if missing else ():
        reward = reward_in(name, body)
        if reward is not None:
            missing[rollout_id]["reward"] = reward


def groups_before(connection: sqlite3.Connection, before: int, limit: int) -> tuple[list[GroupRow], int | None]:
    """Return the groups whose first rollout has a number below this, the newest first, and where to go on."""
    statement = f"""
    WITH first AS (
      SELECT group_id, number FROM facts.rollout_facts f WHERE group_id IS NOT NULL AND number < ? AND NOT EXISTS (
        SELECT 1 FROM facts.rollout_facts o WHERE o.group_id = f.group_id AND o.number < f.number)
      ORDER BY number DESC LIMIT ?)
    SELECT first.group_id, first.number, f.step, x.reward, substr(r.input_json, 1, {8 * PREVIEW}) FROM first
    JOIN facts.rollout_facts f ON f.group_id = first.group_id
    JOIN agl_rollouts r ON r.rollout_id = f.rollout_id
    LEFT JOIN agl_attempts a ON a.rollout_id = r.rollout_id AND a.sequence_id = r.attempts
    LEFT JOIN facts.reward_facts x ON x.rollout_id = f.rollout_id AND x.attempt_id = a.attempt_id
    ORDER BY first.number DESC, f.number
    """
    found: dict[str, GroupRow] = {}
    last: int | None = None
    for group, number, step, reward, task in connection.execute(statement, (before, limit)):
        last = number
        if group not in found:
            found[group] = GroupRow(group=group, step=step, count=0, rewards=[], task=task_preview(task))
        found[group]["rewards"].append(reward)
        found[group]["count"] += 1
    return list(found.values()), last if len(found) == limit else None


def rollout(connection: sqlite3.Connection, rollout_id: str) -> Rollout | None:
    """Return a rollout, or None."""
    row = _one(connection, "SELECT * FROM agl_rollouts WHERE rollout_id = ?", rollout_id)
    if row is None:
        return None
    names = ("rollout_id", "status", "mode", "resources_id", "start_time", "end_time")
    parts = {name: json.loads(row[f"{name}_json"]) for name in ("input", "config", "metadata")}
    return Rollout(**{name: row[name] for name in names}, **parts)


def attempts(connection: sqlite3.Connection, rollout_id: str) -> list[Attempt]:
    """Return the attempts of a rollout, oldest first."""
    rows = _rows(connection, "SELECT * FROM agl_attempts WHERE rollout_id = ? ORDER BY sequence_id", rollout_id)
    return [Attempt(**{**_known(row, Attempt), "metadata": _object(row["metadata_json"])}) for row in rows]


def spans(connection: sqlite3.Connection, rollout_id: str, limit: int) -> list[Span]:
    """Return spans of a rollout, in order."""
    statement = "SELECT * FROM agl_spans WHERE rollout_id = ? ORDER BY sequence_id, number LIMIT ?"
    names = (
        "rollout_id",
        "attempt_id",
        "sequence_id",
        "trace_id",
        "span_id",
        "parent_id",
        "name",
        "start_time",
        "end_time",
    )
    rows = _rows(connection, statement, rollout_id, limit)
    return [Span(**json.loads(row["body_json"]), **{name: row[name] for name in names}) for row in rows]


def workers(connection: sqlite3.Connection) -> list[Worker]:
    """Return the workers, in the order of their ids."""
    rows = _rows(connection, "SELECT * FROM agl_workers ORDER BY worker_id")
    return [Worker(**{**_known(row, Worker), "heartbeat_stats": _object(row["heartbeat_stats_json"])}) for row in rows]


def resources(connection: sqlite3.Connection, limit: int) -> list[ResourcesUpdate]:
    """Return the newest sets of resources, the latest first."""
    rows = _rows(connection, "SELECT * FROM agl_resources ORDER BY write_number DESC LIMIT ?", limit)
    return [
        ResourcesUpdate(**{**_known(row, ResourcesUpdate), "resources": json.loads(row["resources_json"])})
        for row in rows
    ]


def _known(row: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    return {name: row[name] for name in kind.model_fields if name in row}


def _rows(connection: sqlite3.Connection, statement: str, *values: Any) -> list[dict[str, Any]]:
    cursor = connection.execute(statement, values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _one(connection: sqlite3.Connection, statement: str, *values: Any) -> dict[str, Any] | None:
    found = _rows(connection, statement, *values)
    return found[0] if found else None


def _object(text: str) -> dict[str, Any]:
    """Return the object of a JSON text; an empty one where the text is cut off, or none."""
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
