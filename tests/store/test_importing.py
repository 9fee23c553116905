"""Import the records of a store of agent-lightning 0.3 from JSON files of its database and from a server."""

from __future__ import annotations

import asyncio
import gzip
import json
import traceback

import pytest
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.emitter import find_final_reward
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStoreServer,
    SqlLightningStore,
    import_store,
    open_foreign,
    open_store,
)
from mini_agentic_rl.types import LLM, Span

KINDS = ("resources", "rollouts", "attempts", "spans", "workers")


async def recorded():
    """A store with a rollout of two attempts that has succeeded, one that failed, and one that is still under way."""
    store = InMemoryLightningStore()
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


async def documents_of(store, partition="pt-1"):
    """The documents that 0.3's own collections hold of these records: each dumped, with its partition."""
    rollouts = list(await store.query_rollouts())
    found = {
        "resources": list(await store.query_resources()),
        "rollouts": rollouts,
        "attempts": [attempt for rollout in rollouts for attempt in await store.query_attempts(rollout.rollout_id)],
        "spans": [span for rollout in rollouts for span in await store.query_spans(rollout.rollout_id)],
        "workers": list(await store.query_workers()),
    }
    return {
        kind: [{**item.model_dump(exclude={"attempt"}), "partition_id": partition} for item in items]
        for kind, items in found.items()
    }


def write(folder, documents, form):
    folder.mkdir(exist_ok=True)
    for kind, found in documents.items():
        lines = "\n".join(json.dumps({"_id": {"$oid": "0" * 24}, **item}) for item in found)
        if form == "array":
            (folder / f"{kind}.json").write_text(json.dumps(found))
        elif form == "json.gz":
            (folder / f"{kind}.json.gz").write_bytes(gzip.compress(lines.encode()))
        else:
            (folder / f"{kind}.json").write_text(lines)
    return str(folder)


@pytest.mark.parametrize("form", ["json", "json.gz", "array"])
async def test_what_has_ended_comes_with_all_that_is_its_own(tmp_path, form):
    original = await recorded()
    source = open_foreign(write(tmp_path / "dump", await documents_of(original), form))
    store = SqlLightningStore(tmp_path / "store.db")
    found = await import_store(source, store)
    assert (found.rollouts, found.attempts, found.spans, found.resources, found.unfinished) == (2, 3, 4, 1, 1)
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
    again = await import_store(source, store)
    assert (again.rollouts, again.spans, again.resources, again.known) == (0, 0, 0, 2)
    await store.close()


async def test_a_record_that_cannot_be_read_costs_no_other(tmp_path):
    documents = await documents_of(await recorded())
    documents["spans"][0]["name"] = None
    documents["rollouts"].append({"rollout_id": "ro-x", "status": "odd", "partition_id": "pt-1"})
    documents["rollouts"].append({**documents["rollouts"][0], "rollout_id": "ro-other", "partition_id": "pt-2"})
    store = InMemoryLightningStore()
    found = await import_store(open_foreign(write(tmp_path / "d", documents, "json"), partition="pt-1"), store)
    assert (found.rollouts, found.spans, found.strange) == (2, 3, 2)
    assert any(reason.startswith("Span.name") for reason in found.reasons)


async def test_a_server_is_read_through_its_own_interface():
    original, store = await recorded(), InMemoryLightningStore()
    server = LightningStoreServer(original, port=0)
    await server.start()
    try:
        found = await import_store(open_foreign(server.endpoint), store)
    finally:
        await server.stop()
    assert (found.rollouts, found.attempts, found.spans, found.unfinished) == (2, 3, 4, 1)


@pytest.mark.parametrize(
    ("spec", "told"), [("nowhere", "expected mongodb"), ("postgresql://h/d", "expected mongodb")], ids=["none", "sql"]
)
def test_what_is_no_source_is_said_with_what_would_be(spec, told):
    with pytest.raises(UserError, match=told):
        open_foreign(spec)


def test_the_command_says_what_it_took_over(tmp_path):
    async def documents():
        return await documents_of(await recorded())

    folder = write(tmp_path / "dump", asyncio.run(documents()), "json")
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "rollouts.json").write_text("{")

    def run(*arguments):
        return CliRunner().invoke(app, ["import", *map(str, arguments)])

    result = run(folder, "--store", tmp_path / "new.db")
    assert "2 rollouts, 3 attempts, 4 spans and 1 resources imported" in result.output
    assert "1 unfinished rollouts are left out" in result.output
    for source, told in (("empty", "holds no rollouts.json"), ("torn", "cannot be read")):
        refused = run(tmp_path / source, "--store", tmp_path / "other.db")
        assert refused.exit_code != 0
        assert told in refused.output.replace("\n", " ")
    assert "needed: the store to write" in run(folder).output


@pytest.mark.parametrize(
    "address",
    [
        "mongodb://bob:{}@127.0.0.1:port/db",
        "mongodb://bob:{}/db",
        "mongodb://bob:/{}@127.0.0.1/db",
        "mongodb://bob:a@{}@127.0.0.1/db",
        "mongodb://bob:{}%@127.0.0.1/db",
        "mongodb://bob:{}@[127/db",
        "mongodb://{}:@127.0.0.1/a/b.c$",
        "mongodb+srv://bob:{}@127.0.0.1/db",
        "mongodb://bob:{}@127.0.0.1/db?api_key={}&x",
        "mongodb://bob:{}@127.0.0.1/my db",
        "mongo://bob:/{}@127.0.0.1/db",
    ],
)
def test_no_part_of_a_password_is_told_however_badly_its_address_is_written(address, caplog):
    password = "hunter2-of-the-vault"
    caplog.set_level("DEBUG")
    with pytest.raises(UserError) as raised:
        open_foreign(address.replace("{}", password))
    told = "".join(traceback.format_exception(raised.value)) + caplog.text
    try:
        told += repr(open_store(address.replace("{}", password)))
    except (UserError, ValueError) as error:
        told += "".join(traceback.format_exception(error))
    assert password not in told, told


def test_the_log_of_a_database_that_cannot_be_reached_has_no_password(caplog):
    caplog.set_level("DEBUG")
    found = open_foreign("mongodb://bob:hunter2-of-the-vault@127.0.0.1:9/db?serverSelectionTimeoutMS=1")

    async def read():
        return [document async for document in found.records("rollouts")]

    with pytest.raises(UserError, match="cannot be read") as raised:
        asyncio.run(read())
    assert caplog.records, "the driver logs what it does"
    assert "hunter2" not in "".join(traceback.format_exception(raised.value)) + caplog.text
