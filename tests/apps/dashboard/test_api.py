"""The dashboard tells what a run folder and a store hold, page by page, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from hostile import TEXTS
from recorded import add_rollout

from mini_agentic_rl import SqlLightningStore
from mini_agentic_rl.apps.dashboard import dashboard_pages, run_sources, store_source
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreError, LightningStoreServer
from mini_agentic_rl.types import PromptTemplate
from store.test_sql import VERSION_1


def test_a_run_is_told_with_its_state_its_accuracy_and_its_counts(shown):
    run, store = shown.client.get("/dashboard/api/runs").json()["runs"]
    assert (run["name"], run["state"], run["last"]["step"], store["state"]) == ("letters", "finished", 2, "store")
    assert run["totals"]["status"] == {"succeeded": run["totals"]["rollouts"]}
    assert {one["step"] for one in run["intervals"]} == {0, 2}
    assert all(one["low"] <= one["accuracy"] <= one["high"] for one in run["intervals"])


def test_curves_hold_the_numbers_of_the_metrics_by_rl_step(shown, run_folder):
    series = shown.get("letters/curves")["series"]
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    expected = [(row["step"], row["reward/mean"]) for row in rows if "reward/mean" in row]
    assert list(zip(*series["reward/mean"], strict=True)) == expected
    assert [step for step, _ in expected] == [1, 2]


def test_every_metric_of_a_run_stands_in_the_doctors_table(run_folder):
    page = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    names = {name for row in rows for name in row} - {"time", "phase", "step"}
    known = {name for name in names if f"`{name}`" in page or name.startswith("drift/forked")}
    assert len(names) > 30
    assert names - known == set()


def test_the_doctor_looks_at_metrics_and_rollouts_and_at_a_store_alone(shown, serve, tmp_path):
    found = shown.get("letters/doctor")
    assert (found["steps"], found["rollouts"]) == (2, 16)
    names = {one["rule"] for one in found["findings"]} | set(found["healthy"])
    assert {"equal_rewards", "no_reward", "slow_tail"} <= names
    asked = {"messages": [{"role": "user", "content": "q"}], "reply": {"role": "assistant", "content": "a"}}

    async def fill():
        store = SqlLightningStore(tmp_path / "rollouts.db")
        for number in range(20):
            place = {"step": number // 10, "group": f"{number // 10}/{number // 2 % 5}"}
            await add_rollout(store, input="q", reward=0.0, metadata=place, **asked)
        for _ in range(2):
            place = {"step": 4, "group": "4/1"}
            await add_rollout(store, input="q", reward=1, metadata=place, **asked)
        lost = await add_rollout(store, input="q", **asked)
        others = [await add_rollout(store, input="q", **asked) for _ in range(9)]
        return store, [lost, *others]

    store, lost = asyncio.run(fill())
    served = serve(store_source(store))
    assert "equal" in served.get("store/groups/view", group="4/1")["why"]
    found = served.get("store/doctor")
    assert {"no_reward"} <= {one["rule"] for one in found["findings"]}
    assert set(found["findings"][0]["rollouts"]) <= set(lost)


def test_a_rollout_alone_in_its_group_is_not_said_to_teach_nothing(serve, tmp_path):
    asked = {"messages": [{"role": "user", "content": "q"}], "reply": {"role": "assistant", "content": "a"}}

    async def fill():  # as PPO does, which has a critic
        store = SqlLightningStore(tmp_path / "rollouts.db")
        for number in range(16):
            place = {"step": number // 8, "group": f"{number // 8}/{number % 8}"}
            await add_rollout(store, input="q", reward=number % 2, metadata=place, **asked)
        return store

    served = serve(store_source(asyncio.run(fill())))
    assert served.get("store/groups/view", group="1/0")["why"] is None
    assert "equal_rewards" in served.get("store/doctor")["healthy"]


def test_curves_grow_with_the_file_and_begin_anew_when_it_is_cut_off(tmp_path, serve):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}\n{"step": 3, "lo')
    served = serve(*run_sources([tmp_path]))
    assert served.get(f"{tmp_path.name}/curves")["series"]["loss"] == [[1, 2], [3, 2]]
    file.write_text('{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}\n{"step": 3, "loss": NaN}\n')
    assert served.get(f"{tmp_path.name}/curves")["series"]["loss"] == [[1, 2, 3], [3, 2, None]]
    file.write_text('{"step": 1, "loss": 9}\n{"step": 2, "loss": 8}\n{"step": 3, "loss": 7}\n{"step": 4, "loss": 6}\n')
    assert served.get(f"{tmp_path.name}/curves")["series"]["loss"] == [[1, 2, 3, 4], [9, 8, 7, 6]]


def test_pages_of_rollouts_follow_each_other_without_gap_or_repetition(shown):
    whole = shown.get("letters/rollouts", limit=200)
    assert whole["next"] is None
    found, cursor = [], None
    while True:
        page = shown.get("letters/rollouts", limit=3, **({} if cursor is None else {"cursor": cursor}))
        found += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    assert [one["id"] for one in found] == [one["id"] for one in whole["items"]]
    page, found = {"next": ""}, []
    while page["next"] is not None:  # a page of what holds a text may have less than it could, and even nothing
        query = {"cursor": page["next"]} if page["next"] else {}
        page = shown.get("hostile/rollouts", text="0123456789 0123", **query)
        found += page["items"]
    assert [one["task"].startswith("0123456789 0123") for one in found] == [True]


def test_a_filter_passes_just_those_it_names(shown):
    everything = shown.get("hostile/rollouts", limit=200)["items"]
    assert len(everything) == len(TEXTS)
    filters = [
        ({"status": "failed"}, lambda row: row["status"] == "failed"),
        ({"status": "failed,succeeded", "group": "0/0", "step": 1}, lambda row: True),
        ({"status": ","}, lambda row: True),
        ({"reward_min": 0.5}, lambda row: row["reward"] is not None and row["reward"] >= 0.5),
        ({"reward_max": 0.2}, lambda row: row["reward"] is not None and row["reward"] <= 0.2),
        ({"task": "javascript"}, lambda row: "javascript" in row["task"]),
        ({"worker": "onload"}, lambda row: "onload" in (row["worker"] or "")),
        ({"mode": "val"}, lambda row: False),
    ]
    for query, passes in filters:
        expected = [row["id"] for row in everything if passes(row)]
        assert [row["id"] for row in shown.get("hostile/rollouts", limit=200, **query)["items"]] == expected, query


def test_a_rollout_has_its_conversation_its_reward_and_its_spans(shown):
    row = shown.get("letters/rollouts", mode="train", limit=1)["items"][0]
    found = shown.get(f"letters/rollouts/{row['id']}")
    (conversation,) = found["conversations"]
    assert [message["role"] for message in conversation["messages"]] == ["user", "assistant"]
    assert conversation["messages"][0]["content"]["text"] == json.loads(found["task"]["text"])["word"] == row["task"]
    assert found["reward"] == row["reward"] == found["rewards"][-1]["parts"][0]["value"]
    assert len(found["spans"]) == found["attempts"][0]["spans"]
    assert row["step"] == 2


def test_tokens_are_those_that_were_sampled(shown, run_folder):
    row = shown.get("letters/rollouts", mode="train", limit=1)["items"][0]
    (tokens,) = shown.get(f"letters/rollouts/{row['id']}/tokens")["rows"]
    database = sqlite3.connect(run_folder / "rollouts.db")
    bodies = database.execute("SELECT body_json FROM agl_spans WHERE rollout_id = ?", (row["id"],)).fetchall()
    database.close()
    (call,) = [a for (body,) in bodies if "response_token_ids" in (a := json.loads(body)["attributes"])]
    assert tokens["tokens"] == call["prompt_token_ids"] + call["response_token_ids"]
    assert tokens["logprob"] == pytest.approx(call["response_logprobs"], abs=1e-6)
    assert [tokens["tokens"][at] for at in tokens["sampled"]] == call["response_token_ids"]
    assert set(tokens["trained"]) == {True}
    assert set(tokens["version"]) == {call["policy_version"]}
    assert "".join(tokens["texts"][:3]) == "<|im_start|>system\n"


def test_a_group_has_its_rollouts_by_advantage_and_one_tree(shown):
    groups = shown.get("letters/groups")["items"]
    assert [one["count"] for one in groups] == [4] * 4
    group = shown.get("letters/groups/view", group=groups[0]["group"])
    advantages = [one["advantage"] for one in group["rollouts"]]
    assert advantages == sorted(advantages, reverse=True)
    assert sum(advantages) == pytest.approx(0, abs=1e-9)
    root, *rest = group["tree"]["nodes"]
    assert len(root["rollouts"]) == 4
    assert root["sampled"] == 0
    assert all(node["parent"] != 0 for node in rest)
    assert {node["sampled"] > 0 for node in rest} == {True}
    assert sum(node["tokens"] for node in group["tree"]["nodes"]) == group["tree"]["tokens"]


def test_hostile_transcripts_are_sent_as_text_of_bounded_length(shown):
    rows = shown.get("hostile/rollouts", limit=200)["items"]
    for row, (name, text) in zip(reversed(rows), TEXTS.items(), strict=True):
        answer = shown.client.get(f"/dashboard/api/runs/hostile/rollouts/{row['id']}")
        assert answer.headers["content-type"] == "application/json"
        assert len(answer.content) < 500_000, name
        (conversation,) = answer.json()["conversations"]
        told = conversation["messages"][0]["content"]
        assert len(told["text"]) + told["more"] == len(text), name
        whole = text.encode("utf-8", "replace").decode()  # half a surrogate pair is nothing that JSON could send
        assert told["text"].replace("\ufffd", "?") == whole[: len(told["text"])].replace("\ufffd", "?"), name


WRONG = {
    "nothing/rollouts": (404, ""),
    "letters/rollouts/nothing": (404, ""),
    "letters/rollouts?cursor=-1": (400, "cursor"),
    "letters/rollouts?cursor=1;DROP": (400, "cursor"),
    "letters/rollouts?limit=0": (400, "limit"),
    "letters/rollouts?limit=99999999999999999999": (400, "limit"),
    "letters/rollouts?status=good": (400, "status"),
    "letters/rollouts?reward_min=nan": (400, "reward_min"),
    "letters/rollouts?step=x": (400, "step"),
    f"letters/rollouts?text={'x' * 600}": (400, "text"),
}


def test_a_wrong_request_is_told_what_is_wrong_and_nothing_can_be_changed(shown):
    for path, (status, part) in WRONG.items():
        answer = shown.client.get(f"/dashboard/api/runs/{path}")
        assert answer.status_code == status, path
        assert part in answer.json()["error"]["message"]
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert shown.client.request(method, "/dashboard/api/runs/letters/rollouts").status_code == 405


def test_the_page_forbids_every_script_and_source_but_its_own(shown):
    page = shown.client.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "trusted-types 'none'" in policy
    for path in ("/dashboard/app.js", "/dashboard/app.css", "/dashboard/icon.svg", "/docs"):
        assert shown.client.get(path).status_code == 200
    assert "<script>" not in page.text
    assert "//" not in page.text


def test_events_tell_which_run_has_written_something(tmp_path, serve):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 3}\n')
    served = serve(*run_sources([folder]))
    with served.client.stream("GET", "/dashboard/api/events") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: ready"
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 2, "loss": 2}\n')
        told = next(line for line in lines if line == "event: changed")
        assert (told, next(lines)) == ("event: changed", 'data: ["mine"]')


def test_a_run_that_has_just_begun_is_shown_and_its_store_appears(tmp_path, serve):
    for path, message in ((tmp_path / "nothing", "no such folder"), (tmp_path, "no run wrote this")):
        with pytest.raises(UserError, match=message):
            run_sources([path])
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    served = serve(*run_sources([folder]))
    assert served.get("new/rollouts") == {"items": [], "next": None}
    assert served.get("new/curves")["series"] == {}
    store = SqlLightningStore(folder / "rollouts.db")
    asyncio.run(
        add_rollout(
            store, input="q", messages=[{"role": "user", "content": "q"}], reply={"role": "assistant"}, reward=1
        )
    )
    assert served.get("new/rollouts")["items"][0]["reward"] == 1
    asyncio.run(store.close())


def test_the_store_server_shows_the_dashboard_behind_its_key(tmp_path):
    async def ask() -> None:
        store = SqlLightningStore(tmp_path / "rollouts.db")
        source = store_source(store)
        server = LightningStoreServer(
            store, port=0, api_key="secret", pages=lambda admission: dashboard_pages([source], admission)
        )
        await server.start()
        async with httpx.AsyncClient(base_url=server.endpoint, timeout=60) as client:
            assert "app.js" in (await client.get("/")).text
            assert (await client.get("/dashboard/api/runs")).status_code == 401
            headers = {"Authorization": "Bearer secret"}
            runs = (await client.get("/dashboard/api/runs", headers=headers)).json()["runs"]
            assert [run["name"] for run in runs] == ["store"]
            assert (await client.get("/docs")).status_code == 200
        await source.close()
        await server.close()

    asyncio.run(ask())


def test_a_store_of_an_older_version_is_upgraded_and_one_of_a_newer_is_refused(serve, tmp_path):
    for name, version in (("old", 1), ("new", 99)):
        (tmp_path / name).mkdir()
        with closing(sqlite3.connect(tmp_path / name / "rollouts.db")) as connection:
            connection.executescript(VERSION_1.format(number="INTEGER NOT NULL PRIMARY KEY"))
            connection.execute("UPDATE agl_schema SET version = ?", (version,))
            connection.commit()
    served = serve(*run_sources([tmp_path / "old", tmp_path / "new"]))
    assert [row["id"] for row in served.get("old/rollouts")["items"]] == ["ro-2", "ro-1"]
    answer = served.client.get("/dashboard/api/runs/new/rollouts")
    assert answer.status_code == 500
    assert "schema version 99" in answer.text


def test_the_store_of_a_run_is_opened_read_only(run_folder, serve, tmp_path):
    folder = shutil.copytree(run_folder, tmp_path / "letters")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    served = serve(*run_sources([folder]))
    assert served.get("letters/rollouts")["items"]
    store = asyncio.run(served.sources[0].store())
    with pytest.raises(LightningStoreError, match="permissions"):
        asyncio.run(store.enqueue_rollout("x"))
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_workers_and_resources_are_bounded_and_hold_nobody_up(serve, tmp_path):
    async def fill() -> SqlLightningStore:
        store = SqlLightningStore(tmp_path / "rollouts.db")
        for start in (0, 1000):
            await store.update_many_workers({f"runner-{start + number}": {} for number in range(1000)})
        for _ in range(60):
            await store.add_resources({"prompt": PromptTemplate(template="a b " * 50_000, engine="f-string")})
        return store

    served = serve(store_source(asyncio.run(fill())))
    assert len(served.get("store/workers")["items"]) == 1000
    with ThreadPoolExecutor(1) as other:
        resources = other.submit(served.get, "store/resources")
        waits = [0.0]
        while not resources.done():
            waits.append(httpx.get(f"{served.root}/dashboard/app.css", timeout=60).elapsed.total_seconds())
        assert len(resources.result()["items"]) == 60
    assert max(waits) < 1.0


def test_the_server_of_pages_needs_no_torch():
    code = (
        "import sys; from mini_agentic_rl.apps.dashboard import DashboardServer, run_sources; "
        "from mini_agentic_rl.apps.dashboard.views import tokens_view; "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=os.environ)
    assert found.stdout.strip() == "[]", found.stderr


def test_the_shipped_page_is_whole_and_names_no_other_host():
    static = Path(__file__).resolve().parents[3] / "src/mini_agentic_rl/apps/dashboard/static"
    assert {path.name for path in static.iterdir()} == {"index.html", "app.js", "app.css", "icon.svg"}
    assert "resolved" not in (Path(__file__).resolve().parents[3] / "frontend/dashboard/package-lock.json").read_text()


async def test_counts_are_taken_again_when_they_are_old_and_not_for_every_event() -> None:
    class SlowCounts(InMemoryLightningStore):
        counted = 0

        async def statistics(self):
            self.counted += 1
            await asyncio.sleep(0.2)
            return await super().statistics()

    store = SlowCounts()
    source = store_source(store)
    await store.start_rollout("a")
    marks = [await source.mark() for _ in range(20)]
    assert await source.totals() == {"status": {"preparing": 1}, "rollouts": 1, "spans": 0}
    assert '"rollouts": 1' in marks[0]
    assert store.counted < 5
