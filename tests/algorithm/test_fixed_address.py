"""An agent that is made with a client, and never reads the URL of a rollout, is trained and measured all the same."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
from letters import TASKS, algorithm, fit
from openai import AuthenticationError, OpenAI

from gateway.scripted import ScriptedSampler
from mini_agentic_rl import Hook, InMemoryLightningStore, LitAgent, Rollout, Task, agent
from mini_agentic_rl.algorithm.measure import Measure
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway import MiniLLMServer
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


def test_an_agent_with_a_fixed_address_is_trained(port: int) -> None:
    store = InMemoryLightningStore()
    trained = algorithm(total_steps=1, tasks_per_step=2, samples_per_prompt=2, gateway_port=port)
    learner = WordAgent(Client(f"http://localhost:{port}/v1"))
    fit(trained, learner, TASKS[:2], [CountLetters()], store=store, n_runners=2)
    assert trained.summary["untrained"] == {}
    for rollout in asyncio.run(store.query_rollouts()):
        (call,) = [s for s in asyncio.run(store.query_spans(rollout.rollout_id)) if s.name == "openai.chat.completion"]
        assert rollout.input["word"] in call.attributes["gen_ai.input.messages"]
        assert call.attributes["gen_ai.agent.name"] == "speller"


def test_a_policy_that_cannot_be_served_is_closed_even_if_it_was_to_stay_open(port: int) -> None:
    trained = algorithm(total_steps=1, gateway_port=port, keep_open=True)
    threads = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", port)), pytest.raises(UserError, match=str(port)):
        fit(trained, WordAgent(Client("")), TASKS[:2])
    assert not [thread for thread in set(threading.enumerate()) - threads if thread.name == "torch"]


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
    fit(measured, scores, None, store=store, val_dataset=TASKS[:3])
    assert measured.evaluation is not None
    assert measured.evaluation.rewards == [1.0, 1.0, 0.0]
    assert [one.unscored for one in measured.evaluation.rollouts][:2] == [None, None]
    assert [one.untrainable is None for one in measured.evaluation.rollouts] == [False] * 3
    reasons = {one.input["word"]: one.metadata.get("untrained") for one in asyncio.run(store.query_rollouts())}
    assert reasons == {"hi": None, "go": None, "yo": "no reward: neither the agent nor a hook gave one"}


class Elsewhere(LitAgent):
    """Asks as an agent on another machine does: at the URL and with the key that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []

    def rollout(self, task, resources):
        llm = resources["llm"]
        self.asked.append(llm)
        client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key)
        messages: list[Any] = [{"role": "user", "content": task["word"]}]
        answer = client.chat.completions.create(model=llm.model, messages=messages, **llm.sampling_parameters)
        with pytest.raises(AuthenticationError):
            OpenAI(base_url=llm.endpoint, api_key="guessed").models.list()
        return float(len(answer.choices[0].message.content or ""))


def test_agents_on_other_machines_are_told_where_the_endpoint_is_and_its_key(port: int) -> None:
    elsewhere = Elsewhere()
    address = {"gateway_host": "0.0.0.0", "gateway_port": port, "gateway_url": f"http://localhost:{port}/"}
    trained = algorithm(total_steps=1, tasks_per_step=1, samples_per_prompt=2, **address)
    fit(trained, elsewhere, TASKS[:1])
    assert trained.summary["untrained"] == {}
    assert {llm.endpoint for llm in elsewhere.asked} == {f"http://localhost:{port}/v1"}
    assert len({llm.api_key for llm in elsewhere.asked}) == 1


def test_an_endpoint_is_told_under_the_name_by_which_others_reach_it() -> None:
    tokenizer = tiny_tokenizer()

    def endpoint(**options: Any) -> str:
        server = MiniLLMServer(ScriptedSampler(tokenizer, []), tokenizer, model_name=MODEL, port=8000, **options)
        return str(server.as_resource().endpoint)

    assert endpoint(host="127.0.0.1") == "http://127.0.0.1:8000/v1"
    assert endpoint(host="0.0.0.0", api_key="k") == f"http://{socket.gethostname()}:8000/v1"
    url = "https://gateway.example/learner/v1"
    assert endpoint(host="0.0.0.0", api_key="k", public_url=f"{url}/") == url
    with pytest.raises(UserError, match="http://learner:8000") as refused:
        endpoint(public_url="learner:8000")
    assert refused.value.setting == "gateway_url"
