"""Environments of the real `verifiers`: one turn, tools and a talking user; and our tasks in its own hands."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path

import pytest

from mini_agentic_rl.datasets import find_family
from mini_agentic_rl.environments import Endpoint, load_environment
from mini_agentic_rl.errors import UserError
from pages.test_values import test_our_tasks_are_those_of_a_taskset  # noqa: F401
from recipes.playing import ScriptedServer, says, scripted_server

from .training import steps_of, trained

vf = pytest.importorskip("verifiers.v1", reason="verifiers 0.4 is not installed: it is left unchecked")
EXAMPLES = Path(__file__).parents[2] / "examples"
server = scripted_server


async def test_rubric_metrics_and_system_prompt_are_the_environment_s_own(server: ScriptedServer):
    env = load_environment("verifiers:reversal?size=30")
    rows = [row for split in ("train", "val", "test") for row in env.tasks(split, 99)]
    assert len({row["id"] for row in rows}) == 30
    assert len(env.tasks("test", 99)) == 3
    task = env.tasks("train", 1)[0]
    word = task["question"].removeprefix("Reverse ").removesuffix(".")
    server.script = [says(word[::-1])]
    outcome = await env.rollout(task, Endpoint(server.endpoint, "policy", sampling={"temperature": 0.5}))
    short = 1 / (1 + len(word))
    assert outcome.rewards["reward"] == pytest.approx(2.0 + short)
    assert (outcome.rewards["right"], outcome.rewards["letters"]) == (1.0, float(len(word)))
    assert (outcome.rewards["turns"], outcome.output) == (1.0, word[::-1])
    asked = server.requests[0]
    assert asked["messages"] == [
        {"role": "system", "content": "Reverse words."},
        {"role": "user", "content": task["question"]},
    ]
    assert (asked["model"], asked["temperature"]) == ("policy", 0.5)


async def test_a_tool_of_the_task_is_offered_called_and_heard(server: ScriptedServer):
    env = load_environment("verifiers:counter")
    task = env.tasks("train", 1)[0]
    number = int(task["question"].split()[0])
    call = {"name": "add", "arguments": json.dumps({"a": number, "b": 1})}
    calls = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": call}]}
    server.script = [calls, says("done")]
    outcome = await env.rollout(task, Endpoint(server.endpoint, "m"))
    assert outcome.rewards["reward"] == 1.0
    first, second = server.requests
    assert first["tools"][0]["function"]["name"] == "add"
    assert second["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": str(number + 1)}


async def test_several_rollouts_at_once_have_their_own_conversations(server: ScriptedServer):
    env = pickle.loads(pickle.dumps(load_environment("verifiers:talk")))
    server.script = [says("yes")]
    tasks = env.tasks("train", 4)
    outcomes = await asyncio.gather(*(env.rollout(task, Endpoint(server.endpoint, "m")) for task in tasks))
    assert [outcome.rewards["turns"] for outcome in outcomes] == [3.0] * 4
    assert outcomes[0].rewards["reward"] == pytest.approx(1 / 7)
    longest = [request["messages"] for request in server.requests if len(request["messages"]) == 5]
    assert {messages[0]["content"] for messages in longest} == {task["question"] for task in tasks}
    assert longest[0][3] == {"role": "assistant", "content": "yes"} or longest[0][1]["content"] == "yes"


async def test_what_goes_wrong_in_the_environment_fails_its_rollout_and_is_told(server: ScriptedServer):
    env = load_environment("verifiers:faulty")
    server.script = [says("anything")]
    said = {}
    for task in [*env.tasks("train", 99), *env.tasks("val", 99), *env.tasks("test", 99)]:
        try:
            said[task["question"]] = (await env.rollout(task, Endpoint(server.endpoint, "m"))).rewards["reward"]
        except RuntimeError as error:
            said[task["question"]] = str(error)
    assert "it fell" in said["raises"]
    assert said["scores nothing"] == "faulty gave no reward"
    assert said["is fine"] == 1.0
    for spec, complaint in (("nowhere", "verifiers has no 'nowhere'"), ("reversal?size=few", "size")):
        with pytest.raises(UserError, match=complaint):
            load_environment(f"verifiers:{spec}")


async def test_the_example_pays_for_words_in_order(server: ScriptedServer, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    env = load_environment("verifiers:sort_words?words=3&size=10")
    task = env.tasks("train", 1)[0]
    words = task["question"].splitlines()[0].removeprefix("Sort these words alphabetically: ").split()
    rewards = []
    for said in (" ".join(sorted(words)), words[0], "something else"):
        server.script = [says(said)]
        rewards.append((await env.rollout(task, Endpoint(server.endpoint, "m"))).rewards["reward"])
    assert rewards == [pytest.approx(1.2), pytest.approx(0.2 / 3), 0.0]


def test_it_is_trained_with_its_trees_and_groups(model, tmp_path):
    summary = trained("verifiers:talk", model, tmp_path / "run")
    assert summary["untrained"] == {}
    assert steps_of(tmp_path / "run")[0]["grad_norm"] > 0


async def test_our_tasks_are_a_taskset_that_verifiers_runs_and_scores(server: ScriptedServer):
    config = vf.resolve_env_config(
        {
            "taskset": {"id": "mini-agentic-rl-verifiers", "world": "units", "size": 3},
            "agent": {"runtime": {"type": "subprocess"}},
        }
    )
    env = vf.load_environment(config)
    task = next(iter(env.taskset))
    shown = find_family("units").demonstration(task.data.row)
    server.script = [message for message in shown if message["role"] == "assistant"]
    context = vf.ModelContext(model="m", client=vf.EvalClientConfig(base_url=server.endpoint, api_key_var="NO_KEY"))
    async with env.serving():
        episode = await env.run_episode(task, context)
    trace = episode.traces[0]
    assert episode.ok, trace.errors
    assert (trace.reward, trace.num_turns) == (1.0, len(server.script))
    assert trace.metrics["turns"] == len(server.script)
    assert server.requests[0]["messages"] == shown[:2]
