"""Import the finished rollouts of another store: one in this process, and one behind a server."""

from __future__ import annotations

import asyncio

from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.emitter import find_final_reward
from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStoreClient,
    LightningStoreServer,
    SqlLightningStore,
    import_store,
)
from mini_agentic_rl.types import LLM, Span


async def record(store):
    """Record a rollout of two attempts that has succeeded, one that failed, and one that is still under way."""
    await store.add_resources({"llm": LLM(endpoint="http://model/v1", model="m")})
    for end in ("succeeded", "failed", None):
        rollout = await store.start_rollout({"question": end}, mode="train", worker_id="w-1")
        if end == "succeeded":
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="running")
            rollout = await store.start_attempt(rollout.rollout_id)
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        for number in range(2):
            facts = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": float(number)}
            span = Span.from_attributes(
                attributes=facts, name="agentlightning.annotation", sequence_id=number + 1, **ids
            )
            await store.add_span(span)
        if end is not None:
            await store.update_attempt(*ids.values(), status=end)
    return store


async def test_finished_rollouts_of_a_server_come_with_their_attempts_spans_and_resources(tmp_path):
    original = await record(InMemoryLightningStore())
    server = LightningStoreServer(original, port=0)
    await server.start()
    client = LightningStoreClient(server.endpoint)
    store = SqlLightningStore(tmp_path / "store.db")
    imported = await import_store(client, store)
    assert (imported.rollouts, imported.attempts, imported.spans, imported.resources) == (2, 3, 4, 1)
    assert (imported.unfinished, imported.workers) == (1, 1)
    for rollout in await original.query_rollouts(status_in=["succeeded", "failed"]):
        here = await store.get_rollout_by_id(rollout.rollout_id)
        assert here.model_dump() == rollout.model_dump()
        assert list(await store.query_attempts(rollout.rollout_id)) == list(
            await original.query_attempts(rollout.rollout_id)
        )
        spans = await store.query_spans(rollout.rollout_id, "latest")
        assert spans.items == (await original.query_spans(rollout.rollout_id, "latest")).items
        assert find_final_reward(spans) == 1.0
    assert (await store.get_latest_resources()).resources["llm"].model == "m"
    assert (await store.get_worker_by_id("w-1")).status == "unknown"
    again = await import_store(client, store)
    assert (again.rollouts, again.spans, again.resources, again.known) == (0, 0, 0, 2)
    await store.close()
    await client.close()
    await server.close()


def test_the_command_imports_and_names_what_is_missing(tmp_path):
    async def make_source():
        await (await record(SqlLightningStore(tmp_path / "old.db"))).close()

    asyncio.run(make_source())

    def run(*arguments):
        return CliRunner().invoke(app, ["import", *map(str, arguments)])

    result = run(tmp_path / "old.db", "--store", tmp_path / "new.db")
    assert "2 rollouts, 3 attempts, 4 spans and 1 resources imported" in result.output
    assert "1 unfinished rollouts are left out" in result.output
    assert "there is no such file" in run(tmp_path / "none.db", "--store", tmp_path / "other.db").output
    assert "needed: the store to write" in run(tmp_path / "old.db").output
