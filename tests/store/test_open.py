"""Stores named by one line of text, another try for what failed in them, and imports from other stores."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.emitter import find_final_reward
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreClient,
    SqlLightningStore,
    import_store,
)
from mini_agentic_rl.store.open import open_store, retry_rollouts
from mini_agentic_rl.types import LLM, RolloutConfig, Span


async def test_a_file_a_url_and_a_run_folder_name_the_same_store(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    store = open_store(path)
    queued = await store.enqueue_rollout("a")
    for spec in (str(path), f"sqlite:///{path}", tmp_path):
        again = open_store(spec, create=False)
        assert isinstance(again, SqlLightningStore)
        assert await again.get_rollout_by_id(queued.rollout_id) == queued
        await again.close()
    await store.close()
    assert isinstance(open_store("memory"), InMemoryLightningStore)
    client = open_store("http://127.0.0.1:9", api_key="secret")
    assert isinstance(client, LightningStoreClient)
    await client.close()


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("missing.db", "no such file"),
        ("ftp://host/x", "expected a run folder"),
        ("ftp://[::1/x", "expected a run folder"),
        ("http://[::1/", "expected an address"),
        ("http://host/\r\nx: y", "expected an address"),
        (".", "holds no rollouts.db"),
    ],
)
def test_what_names_no_store_is_told_in_one_line(
    spec: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=complaint):
        open_store(spec, create=False)
    assert list(tmp_path.iterdir()) == []


PASSWORD = "hunter2-of-the-vault"


@pytest.mark.parametrize(
    "address",
    [
        "mongodb://bob:{}@127.0.0.1:port/db",
        "mongodb://bob:/{}@127.0.0.1/db",
        "mongodb://bob:{}%@127.0.0.1/db",
        "mongodb://bob:{}@127.0.0.1/my db",
        "mongo://bob:/{}@127.0.0.1/db",
        "ftp://bob:{}@[::1/db",
        "http://bob:{}@[::1/",
        "postgresql://bob:{}@[::1/db",
    ],
)
def test_an_error_holds_no_part_of_a_password(address: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with pytest.raises((UserError, ValueError)) as raised:
        open_store(address.replace("{}", PASSWORD))
    assert PASSWORD not in "".join(traceback.format_exception(raised.value)) + caplog.text


async def test_a_failed_rollout_is_tried_again_as_a_new_one(store: LightningStore) -> None:
    config = RolloutConfig(max_attempts=3)
    failed = await store.start_rollout({"n": 1}, mode="val", resources_id="r", config=config, metadata={"k": 1})
    await store.update_attempt(failed.rollout_id, "latest", status="failed")
    (again,) = await retry_rollouts(store)
    assert again.rollout_id != failed.rollout_id
    assert (again.status, again.input, again.mode, again.resources_id) == ("queuing", {"n": 1}, "val", "r")
    assert again.config == config
    assert again.metadata == {"k": 1, "retry_of": failed.rollout_id}
    assert await retry_rollouts(store) == []
    assert len(await retry_rollouts(store, [failed.rollout_id])) == 1
    before = await store.get_rollout_by_id(failed.rollout_id)
    assert before is not None
    assert before.status == "failed"
    with pytest.raises(ValueError, match="is queuing"):
        await retry_rollouts(store, [again.rollout_id])
    with pytest.raises(ValueError, match="no rollout ro-none"):
        await retry_rollouts(store, ["ro-none"])


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


async def test_finished_rollouts_of_a_server_come_with_their_attempts_spans_and_resources(serve, tmp_path):
    original = await record(InMemoryLightningStore())
    _, client = await serve(original)
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
