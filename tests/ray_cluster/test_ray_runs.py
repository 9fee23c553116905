"""Runs on a real Ray cluster of two nodes on this computer."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from letters import TASKS, algorithm
from ray_runs import all_rollouts, enqueues, runner_of, strategy_of

from mini_agentic_rl.algorithm import Baseline
from mini_agentic_rl.emitter import emit_message, find_final_reward, get_message_value
from mini_agentic_rl.litagent import rollout
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.trainer import Trainer
from mini_agentic_rl.types import AttemptedRollout


def test_a_training_runs_its_agents_on_all_nodes(cluster: Any, tmp_path: Path) -> None:
    @rollout
    def agent(task: int) -> float:
        import ray

        context = ray.get_runtime_context()
        emit_message(f"{context.get_node_id()} {os.environ['TOLD']} {'torch' in sys.modules}")
        if task == 5:
            raise ZeroDivisionError("in the agent")
        time.sleep(0.5)
        return float(task)

    store = InMemoryLightningStore()
    strategy = strategy_of(cluster, n_runners=4, runner_env={"env_vars": {"TOLD": "by-ray"}})
    Trainer(algorithm=Baseline(), store=store, strategy=strategy).fit(agent, list(range(12)))
    ended = all_rollouts(store)
    assert [one.status for one in ended] == ["failed" if task == 5 else "succeeded" for task in range(12)]

    async def spans() -> list[Any]:
        return [await store.query_spans(one.rollout_id) for one in ended]

    found = asyncio.run(spans())
    assert [find_final_reward(one) for one in found] == [None if task == 5 else float(task) for task in range(12)]
    messages = [message.split() for one in found for span in one if (message := get_message_value(span))]
    assert len({node for node, *_ in messages}) == 2
    assert {tuple(rest) for _, *rest in messages} == {("by-ray", "False")}


def test_a_model_that_is_served_here_trains_on_agents_elsewhere(cluster: Any) -> None:
    @rollout
    def agent(task: Any, llm: Any, rollout: AttemptedRollout) -> float:
        from openai import OpenAI

        emit_message(llm.endpoint)
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        client = OpenAI(base_url=url, api_key=llm.api_key)
        messages: list[Any] = [{"role": "user", "content": task["word"]}]
        reply = client.chat.completions.create(model=llm.model, messages=messages, **llm.sampling_parameters)
        return sum(map(ord, reply.choices[0].message.content or "")) % 7 / 7

    store = InMemoryLightningStore()
    trained = algorithm(total_steps=1, tasks_per_step=2, samples_per_prompt=4, eval_size=2)
    Trainer(algorithm=trained, store=store, strategy=strategy_of(cluster)).fit(agent, TASKS)
    assert trained.summary["untrained"] == {}
    ended = all_rollouts(store)
    assert {one.status for one in ended} == {"succeeded"}

    async def told() -> set[str | None]:
        spans = await store.query_spans(ended[0].rollout_id)
        return {message for span in spans if (message := get_message_value(span))}

    (endpoint,) = asyncio.run(told())
    assert str(endpoint).startswith(f"http://{cluster.head_node.node_ip_address}:")


def test_a_working_directory_is_sent_to_the_nodes(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "words.txt").write_text("here")

    @rollout
    def agent(task: int) -> float:
        return 1.0 if Path("words.txt").read_text() == "here" else 0.0

    store = InMemoryLightningStore()
    strategy = strategy_of(cluster, n_runners=1, runner_env=str(tmp_path / "sent"))
    strategy.execute(enqueues(1), runner_of(agent), store)
    assert [one.status for one in all_rollouts(store)] == ["succeeded"]
