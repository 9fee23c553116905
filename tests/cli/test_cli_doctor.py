"""`doctor`, `watch` and `report` read the folder of a run, say plainly what they find, and change nothing in it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sqlite3
from pathlib import Path

import pytest
from recorded import add_rollout

from command_line import invoke
from mini_agentic_rl.store import SqlLightningStore

HOSTILE = "\x1b]0;owned\x07\x1b[2Jbye\u202e"
TOOL = json.dumps([{"type": "function", "function": {"name": "calculator", "parameters": {}}}])


def row(step, **changes):
    numbers = {"rollout/failed": 0, "groups/count": 4, "groups/with_signal": 3, "reward/mean": 0.4, "reward/std": 0.4}
    numbers |= {"seconds/sampling": 10.0, "seconds/tail": 1.0}
    given = {name.replace("__", "/"): value for name, value in changes.items()}
    return {"time": 1.0 + step, "phase": "reinforcement learning", "step": step, **numbers, **given}


def make_run(folder: Path, rows, *, finished=True, rollouts=20, reward=0.5) -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_text('{"model": "embedded", "total_steps": 8, "eval_size": 200}')
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    answers = [{"evaluation": "before", "step": 0, "hash": str(i), "correct": i < 10, "answer": "2"} for i in range(40)]
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in answers))
    if finished:
        (folder / "summary.json").write_text('{"accuracy": []}')

    async def fill():
        store = SqlLightningStore(folder / "rollouts.db")
        for number in range(rollouts):
            await add_rollout(
                store,
                input={"question": f"1 + {number}"},
                messages=[{"role": "system", "content": "Use the tool."}, {"role": "user", "content": HOSTILE}],
                reply={"role": "assistant", "content": "[red]3[/red]"},
                reward=reward,
                metadata={"step": 0, "group": "0/0"},
                **{"gen_ai.tool.definitions": TOOL},
            )
        await store.close()

    asyncio.run(fill())
    return folder


@pytest.fixture(scope="module")
def idle(tmp_path_factory) -> Path:
    """A run in which hardly a group teaches anything, whose agent never calls its tool."""
    rows = [row(step, groups__with_signal=0, reward__mean=0.0, reward__std=0.0) for step in range(1, 9)]
    return make_run(tmp_path_factory.mktemp("runs") / "idle", rows)


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "-shm" not in path.name}


def test_the_doctor_names_the_fault_the_option_and_a_rollout_and_ends_with_status_1(idle):
    before = files_of(idle)
    result = invoke("doctor", idle)
    assert result.exit_code == 1, result.stderr
    assert "idle: looked at 8 steps, 0 measurements, 20 of its newest rollouts" in result.stdout
    assert "Most groups teach nothing: in 20 of 20 groups of the last 5 steps" in result.stdout
    assert "The tool is never called" in result.stdout
    assert "--sft-examples" in result.stdout
    shown = re.search(r"agl (rollouts show \S+ --store \S+)", result.stdout)
    assert shown is not None
    assert invoke(*shown[1].split()).exit_code == 0
    report = json.loads(invoke("doctor", idle, "--json").stdout)
    assert {finding["rule"] for finding in report["findings"]} == {"equal_rewards", "no_tool_calls"}
    assert "sft_examples" in report["findings"][0]["settings"]
    assert "slow_tail" in report["healthy"]
    assert {path: text for path, text in files_of(idle).items() if path in before} == before


@pytest.mark.parametrize("fault", ["of a newer version", "damaged"])
def test_a_run_whose_store_cannot_be_read_is_looked_at_by_its_metrics(fault, tmp_path):
    folder = make_run(tmp_path / "new", [row(step) for step in range(1, 4)], rollouts=1)
    if fault == "damaged":
        (folder / "rollouts.db").write_text("no database" * 500)
    else:
        with sqlite3.connect(folder / "rollouts.db") as store:
            store.execute("UPDATE agl_schema SET version = 99")
    for command in (["doctor"], ["watch", "--once"], ["report"]):
        result = invoke(*command, folder)
        assert result.exit_code == 0, result.output
    assert "its rollouts were left out: the store" in invoke("doctor", folder).stdout


def test_a_healthy_run_ends_with_status_0(tmp_path):
    rows = [row(step, rollout__tool_calls=1.0, rollout__count=32) for step in range(1, 9)]
    result = invoke("doctor", make_run(tmp_path / "fine", rows))
    assert result.exit_code == 0, result.stdout
    assert "no fault was found (rules: no_reward, " in result.stdout
    warm_up = [{"time": 1.0, "phase": "SFT", "step": 1, "sft/loss": 2.0}]
    result = invoke("doctor", make_run(tmp_path / "new", warm_up, rollouts=0))
    assert result.exit_code == 0
    assert "there is no step of reinforcement learning yet" in result.stdout


def test_a_folder_without_a_run_is_one_line(tmp_path):
    for command in ("doctor", "watch", "report"):
        for folder in (tmp_path, tmp_path / "none"):
            result = invoke(command, folder)
            assert result.exit_code == 2, (command, result.output)
            assert len(result.stderr.splitlines()) == 1


def test_watch_shows_each_step_once_and_ends_with_the_run(idle):
    once = invoke("watch", "--once", idle)
    assert once.exit_code == 0, once.output
    assert "idle: finished  reinforcement learning  step 8 of 8  rollouts: 20 succeeded" in once.stdout
    assert "before" in once.stdout
    assert "25.0 %" in once.stdout
    assert "Most groups teach nothing" in once.stdout
    result = invoke("watch", idle, "--poll-seconds", "0.01")
    assert result.exit_code == 0, result.output
    assert [line.split()[1] for line in result.stdout.splitlines() if line.startswith("step ")] == list("12345678")
    assert result.stdout.count("doctor: Most groups teach nothing") == 1
    assert "finished: mini-agentic-rl report" in result.stdout
    assert "done in" not in result.stdout  # the seconds would be those of reading


@pytest.mark.parametrize(("pid", "state"), [("me", "running"), ("nobody", "interrupted"), (None, "interrupted")])
def test_watch_knows_whether_somebody_still_writes(tmp_path, pid, state):
    folder = make_run(tmp_path / "cut", [{**row(1), "time": 4e9}], finished=False, rollouts=0)
    if pid is not None:
        held = {"pid": os.getpid() if pid == "me" else 2**22 + 1, "host": socket.gethostname(), "since": "now"}
        (folder / ".lock").write_text(json.dumps(held))
    assert f"cut: {state}" in invoke("watch", "--once", folder).stdout


def test_report_writes_the_page_of_a_run_that_has_not_ended(tmp_path):
    folder = make_run(tmp_path / "cut", [row(1), row(2)], finished=False, rollouts=1)
    assert invoke("report", folder).exit_code == 0
    page = (folder / "report.html").read_text()
    assert "25.0 %" in page
    assert "What the doctor says" in page
    target = tmp_path / "page.html"
    assert invoke("report", folder, "--output", target).stdout.strip() == f"wrote {target}"
    assert "<svg" in target.read_text()
    result = invoke("report", folder, "--output", tmp_path / "none" / "page.html")
    assert result.exit_code == 2
    assert "none/page.html cannot be written" in result.stderr


def test_a_rollout_is_shown_with_what_was_said_and_steers_no_terminal(idle):
    listed = json.loads(invoke("rollouts", "list", "--store", idle, "--limit", "1", "--json").stdout)
    result = invoke("rollouts", "show", listed[0]["rollout_id"], "--store", idle)
    assert result.exit_code == 0, result.stderr
    assert "Conversation, 1 LLM call, tools: calculator" in result.stdout
    assert result.stdout.index("system") < result.stdout.index("Use the tool.") < result.stdout.index("[red]3[/red]")
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout
    assert "\\x1b]0;owned" in result.stdout
    silent = invoke("rollouts", "show", listed[0]["rollout_id"], "--store", idle, "--no-conversation")
    assert "Use the tool." not in silent.stdout
