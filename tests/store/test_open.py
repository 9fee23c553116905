"""Stores named by one line of text, and another try for what failed in them."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.store import InMemoryLightningStore, LightningStore, SqlLightningStore
from mini_agentic_rl.store.http.client import LightningStoreClient
from mini_agentic_rl.store.open import open_store, retry_rollouts
from mini_agentic_rl.types import RolloutConfig


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


async def test_memory_and_servers_are_named_too() -> None:
    assert isinstance(open_store("memory"), InMemoryLightningStore)
    client = open_store("http://127.0.0.1:9", api_key="secret")
    assert isinstance(client, LightningStoreClient)
    await client.close()


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [("missing.db", "no such file"), ("ftp://host/x", "expected a run folder"), (".", "holds no rollouts.db")],
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


async def test_only_what_failed_can_be_tried_again(store: LightningStore) -> None:
    queued = await store.enqueue_rollout("a")
    with pytest.raises(ValueError, match="is queuing"):
        await retry_rollouts(store, [queued.rollout_id])
    with pytest.raises(ValueError, match="no rollout ro-none"):
        await retry_rollouts(store, ["ro-none"])
    assert (await store.query_rollouts()).total == 1
