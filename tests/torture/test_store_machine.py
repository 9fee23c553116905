"""Stores against values that no database likes, and against kill -9."""

from __future__ import annotations

import asyncio
import math
import random
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mini_agentic_rl.store import LightningStore
from mini_agentic_rl.store.base import LightningStoreError
from mini_agentic_rl.types import PromptTemplate, Span
from store.conftest import opened_store
from store.crash import Acknowledged, check_kept, kill, load_until, nothing_is_stuck, start_command
from store.postgres import needs_postgres, new_database, server

from .conftest import SIZE, Attack

WHOLE = SIZE >= 1
POSTGRES = pytest.param(
    "postgres",
    marks=[needs_postgres, pytest.mark.skipif(not WHOLE, reason="PostgreSQL is attacked by `make torture`, SIZE 1")],
)
LONGEST_LOAD_S = 0.7 if WHOLE else 0.15
ROUNDS_A_STORE = 10
"""Rounds of killing before what a store holds is worked off; the next rounds begin with an empty one."""


def nested(depth: int) -> list[Any]:
    """Return a list in a list, so many times."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


ODD = [
    *("", "a\x00b", "\ud800", "\x1b[2J", "🙂" * 1000, "../../etc/passwd", "x" * 2**20),
    "%_\\'\"; DROP TABLE agl_rollouts; --",
    *(0, -0.0, 2**53, 2**63, -(2**63) - 1, 2**70, 10**4000, 1e308, 5e-324, math.nan, math.inf, -math.inf),
    *(True, None, [], {}, {"": None}, {"a": {"$where": "1"}, "b.c": 1, "$set": 2}, nested(60), nested(900)),
    *(["x"] * 50_000, {str(n): n for n in range(20_000)}),
]
NUMBERS = [-(2**63), -1, 0, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**70]


async def started(store: LightningStore, **fields: Any) -> tuple[str, str]:
    rollout = await store.start_rollout(1, **fields)
    return rollout.rollout_id, rollout.attempt.attempt_id


def a_span(ids: tuple[str, str], **fields: Any) -> Span:
    fields = {"sequence_id": 1, "trace_id": "ab" * 16, "span_id": "cd" * 8, "name": "call", **fields}
    return Span(rollout_id=ids[0], attempt_id=ids[1], **fields)


async def _input(store: LightningStore, value: Any) -> tuple[Any, Any]:
    rollout = await store.enqueue_rollout(value)
    stored = await store.get_rollout_by_id(rollout.rollout_id)
    return stored.input, value


async def _metadata(store: LightningStore, value: Any) -> tuple[Any, Any]:
    rollout = await store.enqueue_rollout(1, metadata={"k": value})
    stored = await store.update_rollout(rollout.rollout_id, metadata={"k": value, "l": 1})
    return stored.metadata, {"k": value, "l": 1}


async def _attributes(store: LightningStore, value: Any) -> tuple[Any, Any]:
    ids = await started(store)
    await store.add_span(a_span(ids, attributes={"k": value}))
    return (await store.query_spans(ids[0]))[0].attributes, {"k": value}


async def _heartbeat(store: LightningStore, value: Any) -> tuple[Any, Any]:
    return (await store.update_worker("w", heartbeat_stats={"k": value})).heartbeat_stats, {"k": value}


async def _name(store: LightningStore, value: Any) -> tuple[Any, Any]:
    text = str(value)
    ids = await started(store, worker_id=text)
    await store.add_span(a_span(ids, name=text, trace_id=text, parent_id=text))
    await store.update_resources(text or "r", {text or "p": PromptTemplate(template=text)})
    await store.query_spans(ids[0], name_contains=text)
    await store.query_rollouts(rollout_id_contains=text, status_in=["queuing"])
    assert await store.get_rollout_by_id(text) is None
    return (await store.query_spans(ids[0], name=text))[0].name, text


async def _page(store: LightningStore, value: Any) -> tuple[Any, Any]:
    for limit, offset in ((value, 0), (1, value), (value, value)):
        await store.query_rollouts(limit=limit, offset=offset)
    await store.dequeue_many_rollouts(limit=value)
    return None, None


async def _number(store: LightningStore, value: Any) -> tuple[Any, Any]:
    ids = await started(store)
    try:
        await store.add_span(a_span(ids, sequence_id=value))
    except ValueError:  # the attempt has to number its spans all the same
        value = 0
    return await store.get_next_span_sequence_id(*ids), max(value, 0) + 1


CALLS: list[tuple[Callable[[LightningStore, Any], Awaitable[tuple[Any, Any]]], list[Any]]] = [
    *((call, ODD) for call in (_input, _metadata, _attributes, _heartbeat, _name)),
    *((call, NUMBERS) for call in (_page, _number)),
]


def same(stored: Any, given: Any) -> bool:
    """Return True if a store kept a value as it was given; a NaN may have become null on its way through JSON."""
    return stored == given or "nan" in repr(given) or "inf" in repr(given)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "http-sqlite", POSTGRES])
async def test_odd_values_are_kept_as_they_are_or_refused_alone(attack: Attack, kind: str, tmp_path: Path) -> None:
    every = [(call, value) for call, values in CALLS for value in values]
    async with opened_store(kind, tmp_path) as store:
        for call, value in random.Random(17).sample(every, min(len(every), attack.times(2 * len(every)))):
            with attack.attempt(f"{call.__name__} {str(value)[:60]!r}", limit_s=10):
                honest = [asyncio.create_task(store.enqueue_rollout({"n": n})) for n in range(4)]
                try:
                    stored, expected = await call(store, value)
                    assert same(stored, expected)
                except (ValueError, LightningStoreError):  # a clean refusal, of this one alone
                    pass
                kept = [(await task).rollout_id for task in honest]
                assert len(await store.query_rollouts(rollout_id_in=kept)) == 4


def _kill_the_database(process: subprocess.Popen[str]) -> None:
    """Crash PostgreSQL under a store server, start it again, and then kill the store server too."""
    server().stop()
    server().start()
    kill(process)


@pytest.mark.parametrize("kind", ["sqlite", POSTGRES])
async def test_rounds_of_kill_9_under_load(attack: Attack, kind: str, tmp_path: Path) -> None:
    rounds = attack.times(200)
    for first in range(0, rounds, ROUNDS_A_STORE):
        place = new_database() if kind == "postgres" else tmp_path / f"store-{first}.db"
        acknowledged = Acknowledged()
        for number in range(first, min(rounds, first + ROUNDS_A_STORE)):
            end = _kill_the_database if kind == "postgres" and number % 4 == 3 else kill
            with attack.attempt(f"round {number}, {end.__name__}"):
                process, address = await asyncio.to_thread(start_command, place)
                await load_until(lambda end=end, process=process: end(process), address, acknowledged, LONGEST_LOAD_S)
                await check_kept(place, acknowledged)
        with attack.attempt(f"nothing is stuck after round {number}"):
            process, address = await asyncio.to_thread(start_command, place)
            await nothing_is_stuck(address, acknowledged)
            assert len(acknowledged.queued) > ROUNDS_A_STORE / 2
            kill(process)
