"""The commands that serve a store and look into one, on real files and real server processes."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import httpx
import pytest

from command_line import invoke
from mini_agentic_rl.store import LightningStore, SqlLightningStore
from mini_agentic_rl.store.http.client import LightningStoreClient
from mini_agentic_rl.types import Span
from processes import PythonProcess


def _json(*arguments: str):
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


async def _fill(store: LightningStore) -> dict[str, str]:
    """One rollout that succeeded with a reward, one that failed, one that waits."""
    good = await store.start_rollout({"question": "1 + 1"}, mode="train", worker_id="worker-1")
    ids = good.rollout_id, good.attempt.attempt_id
    call = {"name": "openai.chat", "attributes": {"text": "[red]2[/red]", "logprobs": [float("-inf")]}}
    reward = {
        "name": "agentlightning.annotation",
        "attributes": {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.75},
    }
    for number, fields in enumerate((call, reward), 1):
        times = {"start_time": 100.0 + number, "end_time": 100.5 + number}
        numbers = {"sequence_id": number, "trace_id": "ab" * 16, "span_id": f"{number:016x}"}
        await store.add_span(Span(rollout_id=ids[0], attempt_id=ids[1], **numbers, **times, **fields))
    await store.update_attempt(*ids, status="succeeded")
    bad = await store.start_rollout({"question": "1 + 2"}, mode="val")
    await store.update_attempt(
        bad.rollout_id, "latest", status="failed", metadata={"error": "the agent: KeyError: 'x'"}
    )
    waiting = await store.enqueue_rollout({"question": "1 + 3"}, mode="train")
    return {"good": good.rollout_id, "bad": bad.rollout_id, "waiting": waiting.rollout_id}


@pytest.fixture
def filled(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """A store file, and the ids of its rollouts."""

    async def fill() -> dict[str, str]:
        store = SqlLightningStore(tmp_path / "rollouts.db")
        try:
            return await _fill(store)
        finally:
            await store.close()

    return str(tmp_path / "rollouts.db"), asyncio.run(fill())


def test_rollouts_are_listed_newest_first_with_the_reason_of_a_failure(filled) -> None:
    store, ids = filled
    result = invoke("rollouts", "list", "--store", store)
    assert result.exit_code == 0, result.stderr
    places = [result.stdout.index(text) for text in (ids["waiting"], ids["bad"], "KeyError", ids["good"], "1 + 1")]
    assert places == sorted(places)
    assert result.stdout.index("1 + 3") < result.stdout.index("1 + 2") < result.stdout.index("1 + 1")
    assert "train 20" in result.stdout
    assert "try 1 of 1" in result.stdout


def test_the_filters_of_the_list(filled) -> None:
    store, ids = filled

    def listed(*options: str) -> list[str]:
        return [rollout["rollout_id"] for rollout in _json("rollouts", "list", "--store", store, *options)]

    assert listed() == [ids["waiting"], ids["bad"], ids["good"]]
    assert listed("--status", "failed", "--status", "queuing") == [ids["waiting"], ids["bad"]]
    assert listed("--mode", "train") == [ids["waiting"], ids["good"]]
    assert listed("--mode", "train", "--limit", "1") == [ids["waiting"]]
    assert "1 of 3 rollouts" in invoke("rollouts", "list", "--store", store, "--limit", "1").stdout


def test_one_rollout_is_shown_with_its_attempts_and_its_reward(filled) -> None:
    store, ids = filled
    shown = _json("rollouts", "show", ids["good"], "--store", store)
    assert (shown["status"], shown["reward"], shown["input"]) == ("succeeded", 0.75, {"question": "1 + 1"})
    assert [(attempt["sequence_id"], attempt["spans"]) for attempt in shown["attempts"]] == [(1, 2)]
    text = invoke("rollouts", "show", ids["bad"][-8:], "--store", store).stdout
    assert ids["bad"] in text
    assert "the agent: KeyError: 'x'" in text


def test_failed_rollouts_are_tried_again_as_new_ones(filled) -> None:
    store, ids = filled
    (again,) = _json("rollouts", "retry", "--store", store)
    assert again["metadata"]["retry_of"] == ids["bad"]
    assert (again["status"], again["input"], again["mode"]) == ("queuing", {"question": "1 + 2"}, "val")
    assert "no failed rollout is left" in invoke("rollouts", "retry", "--store", store).stdout
    refused = invoke("rollouts", "retry", ids["good"], "--store", store)
    assert refused.exit_code == 2
    assert refused.stderr == f"error: rollout {ids['good']} is succeeded: only a failed rollout can be tried again\n"


def test_spans_are_shown_in_order_and_unmarked(filled) -> None:
    store, ids = filled
    result = invoke("spans", "show", ids["good"], "--store", store)
    assert "[red]2[/red]" in result.stdout
    assert result.stdout.index("openai.chat") < result.stdout.index("agentlightning.annotation")
    spans = _json("spans", "show", ids["good"], "--attempt", "1", "--store", store)
    assert [span["sequence_id"] for span in spans] == [1, 2]
    assert spans[0]["attributes"]["logprobs"] == [None]
    missing = invoke("spans", "show", ids["good"], "--attempt", "7", "--store", store)
    assert missing.exit_code == 2
    assert missing.stderr.startswith("error: --attempt 7: ")


def test_workers_are_listed(filled) -> None:
    (worker,) = _json("workers", "--store", filled[0])
    assert (worker["worker_id"], worker["status"]) == ("worker-1", "idle")
    assert "worker-1" in invoke("workers", "--store", filled[0]).stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["rollouts", "list", "--store", "nowhere.db"], "error: store nowhere.db: there is no such file or folder\n"),
        (["rollouts", "list", "--status", "lost"], "error: --status lost: input should be 'queuing'"),
        (["rollouts", "list", "--store", "http://127.0.0.1:9"], "127.0.0.1:9"),
        (["store", "--path", "a.db", "--url", "postgresql://h/d"], "error: --path and --url contradict each other"),
        (["store", "--backend", "memory", "--path", "a.db"], "error: --backend memory keeps nothing"),
        (["store", "--backend", "sqlite"], "error: --backend sqlite needs --path"),
        (["store", "--backend", "postgres"], "error: --url is missing: expected postgresql://host/database\n"),
        (["store", "--backend", "mongo"], "error: --url is missing: expected mongodb://host/database\n"),
        (["store", "--backend", "mongo", "--url", "http://h"], "error: --url http://h: expected mongodb://host/d"),
        (["store", "--host", "0.0.0.0"], "api_key"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGL_API_KEY", raising=False)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert complaint.replace("api_key", "key") in result.stderr.replace("api_key", "key").replace("api-key", "key")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_rollout_that_is_not_there_is_told_in_one_line(filled) -> None:
    store, _ = filled
    for arguments in (["rollouts", "show"], ["spans", "show"], ["rollouts", "retry"]):
        result = invoke(*arguments, "ro-none", "--store", store)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ROLLOUT ro-none: the store holds no such rollout")
    assert "3 rollouts have this in their id" in invoke("rollouts", "show", "ro-", "--store", store).stderr


def test_a_served_file_has_a_key_limits_and_an_origin_and_stops_at_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    page = {"Origin": "https://mine.example", "Authorization": "Bearer secret"}
    limits = ("--max-requests-per-minute", "60", "--max-body-bytes", "5000")
    options = ("--port", "0", "--path", str(path), "--cors-origin", page["Origin"], *limits)
    with PythonProcess("mini_agentic_rl", "store", *options, environment={"AGL_API_KEY": "secret"}) as process:
        address = process.wait_for_line().split()[-1]
        port = address.rpartition(":")[2]

        async def fill() -> dict[str, str]:
            client = LightningStoreClient(address, api_key="secret")
            try:
                return await _fill(client)
            finally:
                await client.close()

        ids = asyncio.run(fill())
        environment = {"AGL_SERVER_HOST": "127.0.0.1", "AGL_SERVER_PORT": port}
        shown = invoke("rollouts", "list", "--json", "--api-key", "secret", **environment)
        assert [rollout["rollout_id"] for rollout in json.loads(shown.stdout)] == list(ids.values())[::-1]
        for refused, word in (
            (invoke("rollouts", "list", "--store", address, "--api-key", "wrong"), "key"),
            (invoke("store", "--port", port), port),
        ):
            assert refused.exit_code == 2
            assert word in refused.stderr
            assert refused.stderr.count("\n") == 1
        with httpx.Client(base_url=f"{address}/v1/agl/", headers=page) as http:
            answer = http.get("statistics")
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, page["Origin"])
            assert http.post("rollouts/search", content=b" " * 5001).status_code == 413
            assert 429 in [http.get("statistics").status_code for _ in range(60)]
            assert http.get("health").status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0, process.stderr
        said = process.stdout.splitlines()
        assert str(path) in said[1]
        assert f"AGL_SERVER_HOST=127.0.0.1 AGL_SERVER_PORT={port} AGL_MANAGED_STORE=0 AGL_API_KEY=..." in said[2]
        assert (said[-1], process.stderr) == ("stopped", "")
    assert len(_json("rollouts", "list", "--store", str(path))) == 3
