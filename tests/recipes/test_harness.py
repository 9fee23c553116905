"""Agents that are commands: their sandbox, their limits, what they must not touch, and what they are worth."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.recipes.environments import Endpoint
from mini_agentic_rl.recipes.harness import Ended, HarnessAgent, HarnessError, HarnessResult, HarnessSettings
from mini_agentic_rl.recipes.harness.programs import landlock
from mini_agentic_rl.recipes.harness.run import HarnessRun
from mini_agentic_rl.recipes.harness.scratch import Scratch
from mini_agentic_rl.tracer import OtelTracer
from mini_agentic_rl.types import LLM, Rollout
from recipes.test_math_agent import ScriptedServer, _server, says

PYTHON = shlex.quote(sys.executable)
AGENT = f"{PYTHON} {shlex.quote(str(Path(__file__).with_name('command_agent.py')))}"
server = _server

pytestmark = pytest.mark.skipif(os.name != "posix", reason="commands as agents need Linux or macOS: left unchecked")
needs_landlock = pytest.mark.skipif(
    landlock.version() < landlock.SCOPE_VERSION, reason="no Landlock 6 here: what a process must not do is unchecked"
)
SANDBOXES = [
    pytest.param("process", id="process", marks=needs_landlock),
    pytest.param(
        "bubblewrap",
        id="bubblewrap",
        marks=pytest.mark.skipif(
            shutil.which("bwrap") is None, reason="bubblewrap is not installed: its sandbox is left unchecked"
        ),
    ),
]
SLEEP = str(1_000_000 + os.getpid())
"""Seconds by which the processes of this test process are told from those of others."""
Play = Callable[..., tuple[Ended, Scratch]]


@pytest.fixture
def task(tmp_path: Path) -> dict[str, Any]:
    """A task with a file, a test that it shows, a history and hidden tests."""
    folder = tmp_path / "tasks" / "one"
    for name, text in {
        "workspace/median.py": "def median(numbers):\n    return numbers[0]\n",
        "workspace/tests/test_median.py": "seen = 1\n",
        "workspace/.git/config": "history\n",
        "tests/test.sh": f'test "$(cat answer.txt)" = 2 && grep -q hidden {"$TESTS"}/secret\n',
        "tests/secret": "hidden\n",
        "instruction.md": "Write 2.\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {"id": "one", "question": "Write 2.", "answer": "", "folder": str(folder)}


@pytest.fixture
def play(task: dict[str, Any], tmp_path: Path) -> Iterator[Play]:
    """Run a command on the task, and say how it ended; nothing of it runs afterwards."""
    made: list[Scratch] = []

    def run(command: str, url: str = "http://127.0.0.1:9/v1", **settings: Any) -> tuple[Ended, Scratch]:
        made.append(Scratch(None, "play"))
        played = HarnessRun(HarnessSettings(agent_command=command, **settings), task, Endpoint(url, "m"))
        return asyncio.run(played.agent(made[-1])), made[-1]

    yield run
    for scratch in made:
        scratch.remove()
        assert not scratch.root.exists()


async def finished(task: dict[str, Any], command: str, **settings: Any) -> HarnessResult:
    """What is left after a command that asks nobody, and the tests."""
    scratch = Scratch(None, "finished")
    run = HarnessRun(HarnessSettings(agent_command=command, **settings), task, Endpoint("http://127.0.0.1:9", "m"))
    try:
        return await run.finish(scratch, await run.agent(scratch))
    finally:
        scratch.remove()


def shell(script: str) -> str:
    return f"sh -c {shlex.quote(script)}"


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_a_command_asks_the_model_and_hidden_tests_judge_what_it_left(sandbox, server: ScriptedServer, task):
    server.script = [says("2")]
    endpoint = Endpoint(f"{server.endpoint}", "m", "key", {"max_tokens": 7})
    run = HarnessRun(HarnessSettings(agent_command=AGENT, sandbox=sandbox), task, endpoint)
    scratch = Scratch(None, "whole")
    ended = await run.agent(scratch)
    assert (ended.exit_code, ended.stdout, ended.left_behind) == (0, "1 characters\n", 0), ended.stderr
    assert server.requests == [{"model": "m", "messages": [says("Write 2.") | {"role": "user"}], "max_tokens": 7}]
    assert not (scratch.workspace / ".git").exists()
    result = await run.finish(scratch, ended)
    assert result.tests is not None
    assert (result.tests.exit_code, result.changed, result.tampered) == (0, ["answer.txt"], []), result.tests.stderr
    scratch.remove()


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_confined_command_sees_and_reaches_only_its_own(sandbox, play: Play, task, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "mine")
    (tmp_path / "private").write_text("mine")
    other = socket.create_server(("127.0.0.1", 0))
    tried = {
        "hidden tests": f"cat {task['folder']}/tests/secret",
        "write": f"echo 1 > {tmp_path}/outside",
        "file of mine": f"cat {tmp_path}/private",
        "supervisor": "kill -0 $PPID && test $PPID -gt 9",
        "variable": 'test -n "$SECRET_KEY"',
        "new file in /": "echo 1 > /new",
        "new file in /dev": "echo 1 > /dev/new",
        "network": f"{PYTHON} -c 'import socket; socket.create_connection((\"127.0.0.1\", {other.getsockname()[1]}))'",
    }
    script = "".join(f"if {command} 2>/dev/null >&2; then echo {name}; fi\n" for name, command in tried.items())
    ended, scratch = play(shell(script + "echo ok > made; cat made"), sandbox=sandbox)
    assert (ended.exit_code, ended.stdout) == (0, "ok\n"), ended.stderr
    assert not (tmp_path / "outside").exists()
    assert (scratch.workspace / "made").read_text() == "ok\n"
    other.close()


def daemon(clean: str = "") -> str:
    """A script that starts a process in a session of its own, and goes on once that runs."""
    return f"{clean} setsid sh -c 'echo > up; exec sleep {SLEEP}' & while [ ! -e up ]; do sleep 0.01; done; "


def sleepers() -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", SLEEP]]


@pytest.mark.parametrize("sandbox", ["process", SANDBOXES[1]])
def test_no_daemon_outlives_its_rollout(sandbox, play: Play):
    ended, _ = play(shell(daemon("env -i")), sandbox=sandbox)
    assert ended.exit_code == 0
    assert ended.left_behind == 1 or sandbox == "bubblewrap"  # there the kernel ends it with its namespace
    assert sleepers() == []


def test_what_kills_its_supervisor_ends_with_its_processes(play: Play, monkeypatch):
    monkeypatch.setattr(landlock, "version", lambda: 0)  # which would forbid the signal
    with pytest.raises(HarnessError, match="its supervisor was killed; so was all that bore its mark"):
        play(shell(f"{daemon()} kill -9 $PPID; sleep {SLEEP}"))
    assert sleepers() == []


BOUNDS: list[tuple[str, dict[str, Any], str]] = [
    ("sleep 987", {"sandbox_seconds": 0.3}, "sandbox_seconds"),
    (shell("while :; do :; done"), {"sandbox_cpu_seconds": 0.3}, "sandbox_cpu_seconds"),
    (shell("for i in 1 2 3 4 5 6 7 8 9; do sleep 987 & done; wait"), {"sandbox_processes": 4}, "sandbox_processes"),
    (shell("head -c 9000000 /dev/zero > big"), {"sandbox_disk_mib": 4}, "sandbox_disk_mib"),
    ("dd if=/dev/zero of=big bs=9000000 count=1", {"sandbox_file_mib": 4}, "sandbox_file_mib"),
]


@pytest.mark.parametrize(("command", "settings", "limit"), BOUNDS, ids=[limit for *_, limit in BOUNDS])
def test_a_limit_ends_the_command_and_is_named(command, settings, limit, play: Play):
    ended, _ = play(command, **settings)
    assert (ended.exit_code, ended.limit) == (None, limit), ended
    assert ended.describe() == f"reached the limit `{limit}`"


def test_memory_is_refused_beyond_its_limit(play: Play):
    ended, _ = play(f"{PYTHON} -S -c 'bytearray(200 << 20)'", sandbox_memory_mib=64)
    assert ended.limit == "sandbox_memory_mib" or "MemoryError" in ended.stderr


def test_of_a_flood_the_beginning_and_the_end_are_kept(play: Play):
    ended, _ = play(shell("echo begin; head -c 30000000 /dev/zero | tr '\\0' x; echo end"), sandbox_output_kib=2)
    assert ended.stdout.startswith("begin\nxxx")
    assert ended.stdout.endswith("xxxend\n")
    assert "bytes are left out ...]" in ended.stdout
    assert len(ended.stdout) < 2200


def test_how_a_command_ended_is_said(play: Play):
    assert play(shell("kill -SEGV $$"))[0].describe() == "was killed by SIGSEGV"
    assert play(shell("exit 3"))[0].describe() == "ended with exit code 3"
    with pytest.raises(HarnessError, match="no-such-program: No such file"):
        play("no-such-program")


async def test_a_command_whose_rollout_is_given_up_is_killed(task):
    settings = HarnessSettings(agent_command=shell("echo $$ > pid; exec sleep 987"))
    scratch = Scratch(None, "given-up")
    run = HarnessRun(settings, task, Endpoint("http://127.0.0.1:9", "m"))
    running = asyncio.create_task(run.agent(scratch))
    while not (scratch.workspace / "pid").exists() or not (scratch.workspace / "pid").read_text():
        await asyncio.sleep(0.01)
    pid = int((scratch.workspace / "pid").read_text())
    assert psutil.pid_exists(pid)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not psutil.pid_exists(pid)
    scratch.remove()


CHEATS = {
    "a changed test": "echo pass > tests/test_median.py",
    "a removed test": "rm -r tests",
    "a link for a folder": "rm -r tests; mkdir other; ln -s other tests",
    "what steers tests": "echo x > conftest.py",
    "a runner of its own": "mkdir pytest; echo x > pytest/__main__.py",
}


@pytest.mark.parametrize("cheat", list(CHEATS))
async def test_protected_files_are_put_back_and_said(cheat, task):
    check = "! test -e conftest.py && ! test -e pytest/__main__.py && grep -q seen tests/test_median.py"
    script = f"printf 2 > answer.txt; {CHEATS[cheat]}"
    result = await finished(task, shell(script), test_command=shell(check))
    assert result.tampered
    assert result.tests is not None
    assert result.tests.exit_code == 0
    assert "answer.txt" in result.changed


async def test_a_test_of_its_own_is_no_tampering_and_is_not_run(task):
    result = await finished(task, shell("echo 1 > test_mine.py"), test_command=shell("! test -e test_mine.py"))
    assert (result.changed, result.tampered) == (["test_mine.py"], [])
    assert result.tests is not None
    assert result.tests.exit_code == 0


async def test_a_rollout_that_tampered_can_be_worth_nothing(task):
    command = shell("printf 2 > answer.txt; echo x > conftest.py")
    settings = HarnessSettings(agent_command=command, tampering="zero")
    result = await finished(task, command, tampering="zero")
    assert result.tests is None
    rewards = await HarnessAgent(settings)._rewards(task, result)
    assert (rewards["reward"], rewards["tampered"]) == (0.0, 1.0)


async def test_the_reward_is_the_tests_the_written_number_the_function_or_the_exit_code(task):
    async def rewards(command: str, **settings: Any) -> float:
        found = await finished(task, command, **settings)
        agent = HarnessAgent(HarnessSettings(agent_command=command, **settings))
        return (await agent._rewards(task, found))["reward"]

    assert await rewards(shell("printf 2 > answer.txt; exit 1")) == 1.0
    assert await rewards("true") == 0.0
    assert await rewards("true", test_command=shell("echo 0.25 > $REWARD_FILE")) == 0.25
    assert await rewards("true", test_command="sleep 987", test_seconds=0.2) == 0.0
    ended = HarnessResult(Ended(0), Path(task["folder"]), [], [])
    given = HarnessAgent(HarnessSettings(agent_command="true", agent_reward="recipes.test_harness:changes"))
    assert (await given._rewards(task, ended))["reward"] == 0.5
    untested = HarnessAgent(HarnessSettings(agent_command="true"))
    assert (await untested._rewards(task, ended))["reward"] == 1.0
    assert (await untested._rewards(task, replace(ended, agent=Ended(3))))["reward"] == 0.0
    with pytest.raises(HarnessError, match=r"'lots' to \$REWARD_FILE, which is no number"):
        await rewards("true", test_command=shell("echo lots > $REWARD_FILE"))
    with pytest.raises(HarnessError, match=r"'' to .REWARD_FILE, which is no number"):
        await rewards("true", test_command=shell("mkfifo $REWARD_FILE"))
    with pytest.raises(HarnessError, match=r"the test command cannot be run: .*no-such-test"):
        await rewards("true", test_command=shell("no-such-test"))


def changes(task: dict[str, Any], result: HarnessResult) -> float:
    return 0.5 if result.changed == [] and task["id"] == "one" else 0.0


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"agent_command": "python 'agent.py"}, "agent_command: .*cannot be read: no closing quotation"),
        ({"agent_env": ["MISSING_HERE"]}, "agent_env: 'MISSING_HERE' is not set here: write NAME=VALUE"),
        ({"agent_reward": "scores"}, "agent_reward: 'scores': write module:function"),
        ({"agent_reward": "no_such_module:score"}, "agent_reward: .* cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_settings_that_cannot_work_are_named_before_any_rollout(settings, complaint):
    with pytest.raises(UserError, match=complaint):
        HarnessAgent(HarnessSettings(**{"agent_command": "true", **settings}))


async def test_a_key_that_a_command_prints_is_in_nothing_that_is_recorded(task, server: ScriptedServer):
    key, gateway_key = "sk-of-the-agent-1234", "key-of-the-gateway-1"
    script = 'echo "$SERVICE and $OPENAI_API_KEY" | tee /dev/stderr'
    command = f"{shell(script)} agent --password {key}2"
    agent = HarnessAgent(HarnessSettings(agent_command=command, agent_env=[f"SERVICE={key}"]))
    llm = LLM(endpoint=server.endpoint, model="m", api_key=gateway_key)
    rollout = Rollout(rollout_id="ro-1", input=task, start_time=0.0)
    tracer = OtelTracer()
    async with tracer.trace_context():
        await agent.rollout_async(task, {"llm": llm}, rollout)
    spans = tracer.get_last_trace()
    recorded = f"{[span.model_dump_json() for span in spans]} {rollout.output}"
    assert "***" in recorded
    assert key not in recorded
    assert gateway_key not in recorded
