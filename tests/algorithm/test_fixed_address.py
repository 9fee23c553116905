"""An agent that is made with a client, and never reads the URL of a rollout, is trained and measured all the same."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
from letters import TASKS, algorithm
from openai import OpenAI

from mini_agentic_rl import Hook, InMemoryLightningStore, LitAgent, Rollout, Task, Trainer, agent
from mini_agentic_rl.algorithm.measure import Measure
from mini_agentic_rl.errors import RunFailedError
from tiny import tiny_model, tiny_tokenizer

MODEL = "LlamaForCausalLM"


class Client:
    """The client of an application that knows nothing of training."""

    def __init__(self, base_url: str) -> None:
        self.openai = OpenAI(base_url=base_url, api_key="none")

    def chat(self, prompt: str) -> str:
        messages: list[Any] = [{"role": "user", "content": prompt}]
        answer = self.openai.chat.completions.create(model=MODEL, messages=messages, max_tokens=6)
        return answer.choices[0].message.content or ""


class WordAgent(LitAgent):
    """As in the tutorials. Two rollouts are under way at any time."""

    def __init__(self, llm_client: Client, **options: Any) -> None:
        super().__init__(**options)
        self.llm_client = llm_client
        self.pairs = threading.Barrier(2)

    def rollout(self, task: Task) -> Rollout:
        self.pairs.wait(30)
        with agent("speller"):
            response = self.llm_client.chat(task.input["word"])
        return Rollout(input=task.input, output=response)


class CountLetters(Hook):
    def on_rollout_end(self, rollout: Rollout, task: Any) -> Rollout:
        rollout.metadata["reward"] = float(len(rollout.output))
        return rollout


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("trained_agents", [None, "planner"])
def test_an_agent_with_a_fixed_address_is_trained(port: int, trained_agents: str | None) -> None:
    store = InMemoryLightningStore()
    trained = algorithm(total_steps=1, tasks_per_step=2, samples_per_prompt=2, gateway_port=port)
    learner = WordAgent(Client(f"http://localhost:{port}/v1"), trained_agents=trained_agents)
    trainer = Trainer(algorithm=trained, hooks=[CountLetters()], store=store, n_runners=2)
    if trained_agents is None:
        trainer.fit(learner, TASKS[:2])
        assert trained.summary["untrained"] == {}
    else:
        with pytest.raises(
            RunFailedError, match="they are of agent 'speller', which trained_agents='planner' does not"
        ):
            trainer.fit(learner, TASKS[:2])
    for rollout in asyncio.run(store.query_rollouts()):
        (call,) = [s for s in asyncio.run(store.query_spans(rollout.rollout_id)) if s.name == "openai.chat.completion"]
        assert rollout.input["word"] in call.attributes["gen_ai.input.messages"]
        assert call.attributes["gen_ai.agent.name"] == "speller"


class Scores(LitAgent):
    """Earns its reward without a call that could be trained."""

    def __init__(self, llm_client: Client) -> None:
        super().__init__()
        self.llm_client = llm_client

    def rollout(self, task, rollout):
        if task["word"] == "hi":
            rollout.mark_agent_as_trainable("planner")
            with agent("solver"):
                self.llm_client.chat("hi")
        return None if task["word"] == "yo" else 1.0


def test_an_evaluation_counts_rewards_whether_calls_are_trained_or_not(port: int) -> None:
    tokenizer = tiny_tokenizer()
    store = InMemoryLightningStore()
    measured = Measure(tiny_model(len(tokenizer)), tokenizer, gateway_port=port)
    scores = Scores(Client(f"http://127.0.0.1:{port}/v1"))
    Trainer(algorithm=measured, store=store, n_runners=2).fit(scores, None, val_dataset=TASKS[:3])
    assert measured.evaluation is not None
    assert measured.evaluation.rewards == [1.0, 1.0, 0.0]
    assert [one.unscored for one in measured.evaluation.rollouts][:2] == [None, None]
    assert [one.untrainable is None for one in measured.evaluation.rollouts] == [False] * 3
    reasons = {one.input["word"]: one.metadata.get("untrained") for one in asyncio.run(store.query_rollouts())}
    assert reasons == {"hi": None, "go": None, "yo": "no reward: neither the agent nor a hook gave one"}
