"""Environments and rollout functions that were written for TRL's GRPOTrainer, and those that go wrong."""

from __future__ import annotations

import asyncio
import math

import pytest

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl import rl
from mini_agentic_rl.adapter import TraceToRecords
from mini_agentic_rl.emitter import find_reward_spans, get_rewards_from_span
from mini_agentic_rl.environments import EnvironmentAgent
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway import MiniLLMServer
from mini_agentic_rl.integrations.trl import TRLEnvironment
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tracer import OtelTracer

CALL = '<tool_call>\n{"name": "add", "arguments": {"number": 2}}\n</tool_call>'
TASK = {"prompt": [{"role": "user", "content": "Count up."}], "start": 3}


class Counter:
    """An environment as TRL's documentation has them."""

    def reset(self, start=0, **row):
        self.total = start
        return f" Begin at {start}."

    def add(self, number: int) -> str:
        """
        Add a number to the total.

        Args:
            number: What to add.
        """
        self.total += number
        return f"now {self.total}"

    def get_reward(self) -> float:
        return float(self.total)


async def play(agent, answers, tasks=(TASK,)):
    """Run a rollout of each task at the same time.

    Returns:
        The errors, rewards by name, and records of each; and what the model was asked.
    """
    tokenizer, store = small_tokenizer(CHATML_TOOLS), InMemoryLightningStore()
    sampler = ScriptedSampler(tokenizer, answers)
    server = MiniLLMServer(sampler, tokenizer, model_name="tiny", store=store).start()

    async def one(task):
        runner = LitAgentRunner(OtelTracer())
        with runner.run_context(agent=agent, store=store):
            resources = {"llm": server.as_resource({"temperature": 0.5, "max_tokens": 60})}
            try:
                rollout = await runner.step(task, resources=resources)
            except Exception as error:
                return error, {}, []
        spans = await store.query_spans(rollout.rollout_id)
        found = [reward for span in find_reward_spans(list(spans)) for reward in get_rewards_from_span(span)]
        return None, {reward.name: reward.value for reward in found}, TraceToRecords().adapt(spans)

    try:
        return await asyncio.gather(*map(one, tasks)), sampler.requests
    finally:
        server.stop(timeout=1)


async def test_an_environment_is_reset_called_and_asked_for_its_reward():
    seen = []

    def polite(environments, completions, completion_ids, start, log_metric, **_):
        seen.append((environments[0].total, completions[0], start))
        log_metric("politeness", 1.0)
        return [0.25 for _ in completion_ids]

    agent = EnvironmentAgent(TRLEnvironment(Counter, polite, reward_weights=[2.0]))
    ((error, rewards, records),), requests = await play(agent, [CALL, "Done."])
    assert error is None
    assert rewards == {"reward": 5.5, "Counter": 5.0, "polite": 0.25}
    asked = small_tokenizer().decode(requests[1].prompt_ids)
    assert "Count up. Begin at 3." in asked
    assert "now 5" in asked
    assert '"add"' in asked
    ((total, completion, start),) = seen
    assert (total, start) == (5, [3])
    assert [message["role"] for message in completion] == ["assistant", "tool", "assistant"]
    assert completion[0]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"number": 2}}
    first, second = records  # the second call goes on from the first, token by token
    assert second.prompt_ids[: first.prompt_ids.size + first.output_ids.size].tolist() == [
        *first.prompt_ids.tolist(),
        *first.output_ids.tolist(),
    ]


async def test_instances_are_used_again_but_not_one_that_raised():
    made = []

    class Fragile(Counter):
        def __init__(self):
            made.append(self)

        def reset(self, start=0, **row):
            if start < 0:
                raise RuntimeError("no such start")
            return super().reset(start)

    agent = EnvironmentAgent(TRLEnvironment(Fragile))
    tasks = [{**TASK, "start": start} for start in (1, -1, 2)]
    found, _ = await play(agent, ["Done."], tasks)
    assert [str(error) for error, _, _ in found if error] == ["no such start"]
    assert [rewards.get("reward") for _, rewards, _ in found] == [1.0, None, 2.0]
    assert len(made) == 3  # one for each rollout that ran at the same time
    await play(agent, ["Done."], tasks[:1])
    assert len(made) == 3


async def test_an_environment_without_a_proper_reward_is_one_clear_error():
    class Odd(Counter):
        def reset(self, value, **row):
            self.value = value

        def get_reward(self):
            return self.value

    tasks = [{**TASK, "value": value} for value in (None, math.nan, "good")]
    found, _ = await play(EnvironmentAgent(TRLEnvironment(Odd)), ["Done."], tasks)
    for (error, rewards, _), told in zip(found, ("gave no reward", "returned nan", "returned 'good'"), strict=True):
        assert told in str(error)
        assert rewards == {}


async def test_a_tool_that_raises_tells_the_model_and_the_row_chooses_among_environments():
    class Broken(Counter):
        def add(self, number: int) -> str:
            """
            Add a number.

            Args:
                number: What to add.
            """
            raise RuntimeError("out of order")

    rows = [{**TASK, "environment": name} for name in ("works", "broken", "lost")]
    world = TRLEnvironment({"works": Counter, "broken": Broken}, train_dataset=rows)

    def once(request):
        return "Done." if "<tool_response>" in small_tokenizer().decode(request.prompt_ids) else CALL

    found, requests = await play(EnvironmentAgent(world), once, rows)
    assert [rewards.get("reward") for _, rewards, _ in found] == [5.0, 3.0, None]
    assert "environment='lost': there are 'works', 'broken'" in str(found[2][0])
    assert any("out of order" in small_tokenizer().decode(request.prompt_ids) for request in requests)


def test_what_cannot_be_an_environment_is_said_before_anything_runs():
    class NoReset:
        def get_reward(self):
            return 1.0

    class Mute(Counter):
        def act(self, what):
            return "?"

    for factory, arguments, told in [
        (NoReset, (), "NoReset has no reset"),
        (Mute, (), "act cannot be a tool"),
        (type("Plain", (), {"reset": Counter.reset}), (), "nothing gives a reward"),
        (Counter, ("org/reward-model",), "is no reward function"),
    ]:
        with pytest.raises(UserError, match=told):
            TRLEnvironment(factory, *arguments)


def test_an_environment_is_trained_by_the_trainer_that_takes_it_as_trl_does(tiny_folder, tmp_path):
    values = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "samples_per_prompt": 2,
        "max_steps": 1,
    }
    values |= {"max_new_tokens": 6, "lora_r": 2}

    def config(name):
        return rl.TrainingConfig(model_name=tiny_folder, output_dir=str(tmp_path / name), **values)

    played = rl.GRPOTrainerWrapper(config("env"), environment_factory=Counter)
    assert played.train()["steps"] == 1
    with pytest.raises(UserError, match="set max_steps"):
        rl.GRPOTrainerWrapper(rl.TrainingConfig(model_name=tiny_folder), environment_factory=Counter)
