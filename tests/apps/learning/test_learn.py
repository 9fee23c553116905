"""`serve --learn-from-use` and `learn`, from their settings to published weights that are served, and served again."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from typer.testing import CliRunner

from mini_agentic_rl import Sessions
from mini_agentic_rl.apps.learning import UseFolder, delete_old
from mini_agentic_rl.cli import app
from mini_agentic_rl.commands import ServeSettings, open_server
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.store import open_store


def _serving(model, folder, **settings):
    return ServeSettings(
        model=model, port=0, dtype="float32", device="cpu", cache_mib=64, learn_from_use=folder, **settings
    )


def _learn(*arguments):
    return CliRunner().invoke(app, ["learn", *map(str, arguments)])


def _talk(url, name):
    headers = {"X-Session-Id": name, "X-Session-Consent": "yes"}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "max_tokens": 4}
    answer = httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=60).raise_for_status().json()
    return answer


def test_sessions_are_recorded_learnt_from_published_and_served_again(tiny_folder, tmp_path):
    folder = tmp_path / "use"
    names = ["a", "b", "c", "d"]
    settings = _serving(tiny_folder, folder, served_model_name="tiny")
    with open_server(settings) as server, Sessions(server.endpoint) as sessions:
        for name in names:
            _talk(server.endpoint, name)
            sessions.reward(name, float(name in "ac"))
        told = _learn(folder, "--once", "--min-sessions", 4)
        assert told.output.endswith("1 step on 4 sessions; version 1\n"), told.output
        assert {sessions.show(name)["learnt_in"] for name in names} == {1}
        end = time.monotonic() + 30
        while True:  # the server has taken the version when it records it
            _talk(server.endpoint, "e")
            if _version(folder, "e") == 1:
                break
            assert time.monotonic() < end
    with open_server(settings) as server:
        _talk(server.endpoint, "f")
    assert _version(folder, "f") == 1
    assert _learn(folder, "--once").output.splitlines()[-1] + "\n" == "no step was taken; version 1\n"


def test_sessions_that_were_worth_the_same_are_no_step(tiny_folder, tmp_path, caplog):
    folder = tmp_path / "use"
    with open_server(_serving(tiny_folder, folder, served_model_name="tiny")) as server:
        with Sessions(server.endpoint) as sessions:
            for name in "ab":
                _talk(server.endpoint, name)
                sessions.reward(name, 0.5)
        with caplog.at_level("INFO"):
            told = _learn(folder, "--once", "--min-sessions", 2)
    assert told.output.endswith("no step was taken; version 0\n"), told.output
    assert "2 sessions taught nothing" in caplog.text + told.output


def _version(folder, name):
    async def newest():
        store = open_store(folder / "sessions.db")
        try:
            for rollout in await store.query_rollouts():
                if rollout.metadata["session"]["id"] == name:
                    spans = await store.query_spans(rollout.rollout_id)
                    return spans[len(spans) - 1].attributes["policy_version"]
        finally:
            await store.close()

    return asyncio.run(newest())


def test_what_cannot_work_is_told_in_one_line(tiny_folder, tmp_path):
    told = _learn(tmp_path / "nothing", "--once")
    assert (told.exit_code, "--learn-from-use" in told.output) == (2, True), told.output
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^learn_from_use: .*cannot be written: Not a directory"):
        UseFolder(tmp_path / "file" / "use").write_serving({})
    folder = UseFolder(tmp_path / "use")
    folder.write_serving({"model": "another", "adapter": None, "name": "another", "store": "memory"})
    with pytest.raises(UserError, match="another folder"), open_server(_serving(tiny_folder, folder.path)):
        pass


def test_old_sessions_are_deleted_and_other_rollouts_stay(tmp_path):
    async def run():
        store = open_store(tmp_path / "sessions.db")
        await store.start_rollout("session", rollout_id="se-1")
        await store.start_rollout("other")
        assert await delete_old(store, 1.0) == 0
        assert await delete_old(store, 1e-9) == 1
        assert [rollout.input for rollout in await store.query_rollouts()] == ["other"]
        await store.close()

    asyncio.run(run())
