"""Environments behind a real server of OpenEnv: one of answers, and one of tools."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mini_agentic_rl.environments import Endpoint, load_environment
from mini_agentic_rl.errors import UserError
from recipes.playing import ScriptedServer, says, scripted_server

from .training import steps_of, trained

pytest.importorskip("openenv.core", reason="openenv-core is not installed: its environments are left unchecked")
server = scripted_server
SERVER = Path(__file__).parent / "worlds" / "echo_server.py"


@contextlib.contextmanager
def served(kind: str, sessions: int) -> Iterator[str]:
    """Start a server with so many sessions, and give its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SERVER), kind, str(port), str(sessions)])
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            assert process.poll() is None, "the server ended"
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health", timeout=5, trust_env=False).is_success:
                    break
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def echo():
    with served("echo", 2) as url:
        yield url


async def test_answers_are_actions_and_observations_what_follows(echo, server: ScriptedServer):
    env = load_environment(f"openenv:{echo}?system=Echo.")
    task = env.tasks("train", 1)[0]
    server.says("a", '{"message": "four"}', "no")
    outcome = await env.rollout(task, Endpoint(server.endpoint, "m"))
    assert outcome.rewards == {"reward": pytest.approx(1 / 2 + 1 / 5 + 1 / 3), "turns": 3.0}
    told = [message["content"] for message in server.requests[2]["messages"]]
    assert told == ["Echo.", f"say something, {task['seed']}", "a", "a", '{"message": "four"}', "four"]


async def test_more_rollouts_than_sessions_wait_for_one(echo, server: ScriptedServer):
    env = load_environment(f"openenv:{echo}")
    server.says("a")
    outcomes = await asyncio.gather(
        *(env.rollout(task, Endpoint(server.endpoint, "m")) for task in env.tasks("val", 6))
    )
    assert [outcome.rewards["reward"] for outcome in outcomes] == [pytest.approx(1.5)] * 6


async def test_an_error_of_the_server_fails_the_rollout_and_no_reward_is_not_0(echo, server: ScriptedServer):
    env = load_environment(f"openenv:{echo}")
    task = env.tasks("train", 1)[0]
    server.says("explode")
    with pytest.raises(RuntimeError, match="the server's world fell over"):
        await env.rollout(task, Endpoint(server.endpoint, "m"))
    server.says("nothing")
    with pytest.raises(ValueError, match=r"no step of .* gave a reward"):
        await env.rollout(task, Endpoint(server.endpoint, "m"))


async def test_a_server_of_tools_offers_them_to_the_model(server: ScriptedServer):
    call = {"id": "c1", "type": "function", "function": {"name": "double", "arguments": json.dumps({"number": 21})}}
    server.script = [{"role": "assistant", "tool_calls": [call]}, says("42")]
    with served("tools", 2) as url:
        env = load_environment(f"openenv:{url}")
        outcome = await env.rollout(env.tasks("train", 1)[0], Endpoint(server.endpoint, "m"))
    assert outcome.rewards == {"reward": 1.0, "turns": 2.0}
    first, second = server.requests
    assert first["tools"][0]["function"]["name"] == "double"
    assert second["messages"][-1]["role"] == "tool"
    assert "42" in second["messages"][-1]["content"]


def test_a_server_that_is_not_there_is_told():
    with pytest.raises(UserError, match=r"no OpenEnv server answers at http://127\.0\.0\.1:1"):
        load_environment("openenv:http://127.0.0.1:1")


def test_it_is_trained_with_its_trees_and_groups(echo, model, tmp_path):
    summary = trained(f"openenv:{echo}?max_turns=4", model, tmp_path / "run")
    assert summary["untrained"] == {}
    assert steps_of(tmp_path / "run")[0]["grad_norm"] > 0
