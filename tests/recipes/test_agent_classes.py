"""Agent classes of agent-lightning 1.0: a process for each rollout, its model, task and reward in its environment."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import small_tokenizer
from mini_agentic_rl.adapter import TraceToRecords
from mini_agentic_rl.emitter import find_final_reward
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway import MiniLLMServer
from mini_agentic_rl.jobs.rollout_trainer import run_ppo
from mini_agentic_rl.recipes.agent_classes import AgentClassProgram
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tracer import OtelTracer

AGENTS = """
import json, os
from urllib.request import Request, urlopen


def post(url, body):
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["AGL_KEY"]}
    with urlopen(Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)


class Asking:
    def run(self):
        messages = [{"role": "user", "content": os.environ["QUESTION"]}]
        url = os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions"
        answer = post(url, {"model": "auto", "messages": messages, "max_tokens": 6})
        said = answer["choices"][0]["message"]["content"] or ""
        value = len(said) + json.loads(os.environ["FACTS"])["bonus"]
        post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": value}})


class Waiting(Asking):
    async def run(self):
        Asking.run(self)


class Failing:
    def run(self):
        raise RuntimeError("no such tool")

"""
TASK = {"question": "12+30?", "facts": {"bonus": 1}}
ENV_MAP = {"QUESTION": "input.question", "FACTS": "input.facts", "FIXED": "plain"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "one_point_oh.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def play(agent):
    """One rollout: its spans, or the error that it ended with."""
    tokenizer, store = small_tokenizer(), InMemoryLightningStore()
    server = MiniLLMServer(
        ScriptedSampler(tokenizer, ["It is 42."]), tokenizer, model_name="tiny", store=store, api_key="secret"
    ).start()
    try:
        runner = LitAgentRunner(OtelTracer())
        with runner.run_context(agent=agent, store=store):
            rollout = await runner.step(TASK, resources={"llm": server.as_resource()}, mode="train")
        return await store.query_spans(rollout.rollout_id)
    finally:
        server.stop(timeout=1)


@pytest.mark.parametrize("name", ["one_point_oh.Asking", "one_point_oh:Waiting"])
async def test_a_class_finds_its_model_and_task_and_leaves_its_reward(folder, name):
    spans = await play(AgentClassProgram(name, ENV_MAP))
    (record,) = TraceToRecords().adapt(spans)
    said = small_tokenizer().decode(record.output_ids, skip_special_tokens=True)
    assert "It is 42.".startswith(said)
    assert find_final_reward(spans) == len(said) + 1


async def test_a_class_that_raises_is_told_by_its_last_line(folder):
    with pytest.raises(RuntimeError, match=r"Failing ended with exit code 1: RuntimeError: no such tool"):
        await play(AgentClassProgram("one_point_oh.Failing"))
    with pytest.raises(RuntimeError, match="No module named 'nowhere'"):
        await play(AgentClassProgram("nowhere.Agent"))
    with pytest.raises(ValueError, match=r"the task has no input\.other"):
        await play(AgentClassProgram("one_point_oh.Asking", {"X": "input.other"}))


def test_a_training_program_of_1_0_trains_here(folder, tiny_folder):
    own = {"local": {"agent_class": "one_point_oh.Asking", "env_map": ENV_MAP}, "rollout_timeout_seconds": 60}
    config = OmegaConf.create(
        {
            "data": {"train_batch_size": 2, "max_response_length": 6},
            "actor_rollout_ref": {"model": {"path": tiny_folder, "lora_rank": 2}, "rollout": {"n": 2}},
            "trainer": {"total_training_steps": 1, "default_local_dir": str(folder / "run")},
            "agentlightning": own,
        }
    )
    run_ppo(config, train_dataset=[TASK, {**TASK, "question": "1+1?"}], val_dataset=[])
    assert (folder / "run" / "summary.json").is_file()
    own["local"] = {}
    with pytest.raises(UserError, match="agent_class names the agent"):
        run_ppo({"agentlightning": own}, [TASK])
    with pytest.raises(UserError, match="hooks are not run here"):
        run_ppo({"agentlightning": {**own, "hooks": "hooks.py"}}, [TASK])
    with pytest.raises(UserError, match="no rows"):
        run_ppo({}, [])
