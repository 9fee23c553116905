"""What PostgreSQL still has of rollouts that were deleted: nothing that can be asked for, and no file once it is told
to write its tables anew, as docs/learning-from-use.md says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mini_agentic_rl.store import SqlLightningStore
from mini_agentic_rl.types import Span

from .postgres import PostgresServer, needs_postgres

pytestmark = needs_postgres
PURGE = "VACUUM (FULL) agl_spans, agl_attempts, agl_rollouts"
"""The statement of the page."""
SESSIONS = 20


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server of its own, whose files nobody else writes, and which logs every statement."""
    server = PostgresServer()
    server.start()
    for setting in ("log_statement = 'all'", "log_parameter_max_length_on_error = -1", "log_parameter_max_length = 0"):
        server.execute(f"ALTER SYSTEM SET {setting}")
    server.execute("SELECT pg_reload_conf()")
    server.execute("CREATE DATABASE sessions STRATEGY file_copy")
    yield server
    server.remove()


def holding(server: PostgresServer, secrets: list[str]) -> dict[str, int]:
    """Return how many of some texts stand in the server's files, by where: tables, its write-ahead log, its log."""
    server.execute("CHECKPOINT")
    found = {"tables": 0, "wal": 0, "log": 0}
    for file in filter(Path.is_file, server.folder.rglob("*")):
        kind = "wal" if "pg_wal" in file.parts else "log" if file.name == "server.log" else "tables"
        data = file.read_bytes()
        found[kind] = max(found[kind], sum(secret.encode() in data for secret in secrets))
    return found


async def written(store: SqlLightningStore, number: int) -> tuple[str, str]:
    """Store a rollout with a text, short or long, and return its id and the text's beginning."""
    secret = f"secret-{number:06}-{number * 7919:06}"
    rollout = await store.start_rollout({"task": secret})
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    text = f"{secret} " * (1, 3, 40, 500)[number % 4]
    await store.add_span(Span.from_attributes(attributes={"messages": text}, sequence_id=1, name="call", **ids))
    await store.update_attempt(ids["rollout_id"], ids["attempt_id"], status="succeeded")
    return rollout.rollout_id, secret


def test_a_deleted_rollout_is_in_no_file_of_the_tables_once_they_are_written_anew(own_server: PostgresServer) -> None:
    async def work() -> tuple[list[str], list[str]]:
        store = SqlLightningStore(own_server.url("sessions"))
        made = [await written(store, number) for number in range(SESSIONS)]
        gone = await store.delete_rollouts([rollout_id for rollout_id, _ in made[::2]])
        assert len(gone) == SESSIONS // 2
        assert len(await store.query_rollouts()) == SESSIONS // 2
        await store.close()
        return [secret for _, secret in made[::2]], [secret for _, secret in made[1::2]]

    deleted, kept = asyncio.run(work())
    assert holding(own_server, deleted)["tables"] > 0, "then PostgreSQL needs no statement for it"
    own_server.execute(PURGE, "sessions")
    found = holding(own_server, deleted)
    assert (found["tables"], found["log"]) == (0, 0)
    assert holding(own_server, kept)["tables"] == len(kept)


def test_texts_are_parameters_that_no_log_shows_though_a_statement_fails(own_server: PostgresServer) -> None:
    async def work() -> None:
        store = SqlLightningStore(own_server.url("sessions"))
        with pytest.raises(ValueError, match="cannot keep this"):  # the server's index takes no name so long
            await store.update_worker(f"the colour of the vault {random.Random(0).randbytes(20_000).hex()}")
        await written(store, 999)
        await store.close()

    asyncio.run(work())
    log = (own_server.folder / "server.log").read_text()
    assert "INSERT INTO agl_spans" in log
    assert "secret-000999" not in log
    assert "ERROR:  index row" in log
    assert "the colour of the vault" not in log
