"""Runs on a real Ray cluster of two nodes on this computer or one that is started for the run, and refusals."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from letters import TASKS, algorithm
from ray_runs import SECONDS, all_rollouts, enqueues, idle, runner_of, strategy_of

from mini_agentic_rl.algorithm import Baseline
from mini_agentic_rl.emitter import emit_message, find_final_reward, get_message_value
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.execution import ExecutionEvent
from mini_agentic_rl.litagent import rollout
from mini_agentic_rl.store import InMemoryLightningStore, LightningStore
from mini_agentic_rl.trainer import Trainer
from mini_agentic_rl.types import AttemptedRollout

pytest.importorskip("ray", reason="Ray is not installed: `make test-real` installs it and runs these tests")


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


def test_runners_that_no_node_has_room_for_wait_and_say_for_what(
    cluster: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_agentic_rl.integrations.ray.runners._WAITING_SECONDS", 1.0)

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await store.enqueue_rollout(1)
        end = time.monotonic() + SECONDS
        while "no runner has a place yet" not in caplog.text:
            assert time.monotonic() < end
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.INFO):
        strategy_of(cluster, runner_cpus=64).execute(algorithm, idle, InMemoryLightningStore())
    assert "no node of the cluster has the 64 CPUs that a runner asks for (`runner_cpus`" in caplog.text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"runner_env": {"env_var": {}}}, "runner_env: .*env_vars"),
        ({"runner_env": {"env_vars": {"A": 1}}}, "runner_env: .*Dict"),
        ({"runner_env": {"working_dir": "/nowhere"}}, "runner_env: .*no folder /nowhere"),
        ({"address": "127.0.0.1:1"}, "ray_address: there is no Ray cluster at 127.0.0.1:1"),
    ],
)
def test_what_ray_does_not_take_is_said_in_one_line(cluster: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        strategy_of(cluster, **settings).execute(enqueues(0), idle, InMemoryLightningStore())
    assert "\n" not in str(refused.value)


def test_a_cluster_of_a_run_is_started_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MINI_AGENTIC_RL_CACHE", str(tmp_path / "cache"))
    script = textwrap.dedent(
        """
        from mini_agentic_rl.litagent import rollout
        from mini_agentic_rl.trainer import Trainer

        @rollout
        def agent(task):
            return float(task)

        strategy = {"type": "ray", "address": "local", "n_runners": 1}
        Trainer(algorithm="baseline", strategy=strategy, output_dir="run").fit(agent, [1, 2])
        """
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    before = set(Path("/tmp").glob("agentic-rl-*"))
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "home").exists()
    assert not any((tmp_path / "cache").glob("ray/*"))
    assert not {path.name for path in set(Path("/tmp").glob("agentic-rl-*")) - before}
