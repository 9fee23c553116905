"""Facts that a list filters by and that no column of the store holds: each rollout's reward, group and step.

They stand inside JSON texts, of which a store of 100,000 rollouts has a gigabyte. So a thread reads each rollout and
each span once, in the order in which they were stored, and keeps what it finds in a file of its own, which readers
attach. It never writes to the store.
"""

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
from .base import GROUP_KEY, rl_step

logger = logging.getLogger(__name__)

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
