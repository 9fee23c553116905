"""Servers that sample on the nodes of a Ray cluster, and what becomes of them where an actor, a node or the run dies.

A program that speaks vLLM's wire over our own engine stands in for vLLM; `make test-real` has the real one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from letters import TASKS
from ray_runs import SECONDS, all_rollouts, strategy_of

from mini_agentic_rl.algorithm import MiniGRPO
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.integrations.ray.samplers import ServerSetup, VllmActor
from mini_agentic_rl.litagent import rollout
from mini_agentic_rl.policy import DEFAULT_ADAPTER, LoraSettings, Policy
from mini_agentic_rl.samplers import Sampler, SamplerPool, SamplerSettings, make_sampler
from mini_agentic_rl.samplers.vllm_process import ServedModel
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tokens import SamplingParams, TokenRequest
from mini_agentic_rl.trainer import Trainer
from mini_agentic_rl.types import AttemptedRollout
from processes import all_have_ended
from samplers.vllm_stand_in import stand_in
from samplers.vllm_wire import until_all_are_well


def of_kind(word: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if word in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


def servers() -> list[psutil.Process]:
    return of_kind("vllm_stand_in.py serve")


@pytest.fixture(autouse=True)
def _no_server_is_left() -> Iterator[None]:
    yield
    left = [*servers(), *of_kind("ray::VllmActor")]
    assert all_have_ended(left, 30), left


def settings_of(cluster: Any, folder: Path, **given: Any) -> SamplerSettings:
    settings = {"sampler": "vllm", "sampler_ray": cluster.address, "sampler_folder": folder / "weights"}
    settings |= {"vllm_python": stand_in(folder), "sampler_timeout": float(SECONDS)}
    return SamplerSettings(**{**settings, **given})


@contextmanager
def sampling(model: str, settings: SamplerSettings) -> Iterator[tuple[Policy, SamplerPool]]:
    policy = Policy.load(model, lora=LoraSettings(r=4, alpha=8), device="cpu", seed=1)
    pool: Sampler | None = None
    try:
        pool = make_sampler(
            settings, policy, base_name="base", prompts=[[5, 6, 7], [8, 9]], model_folder=model, least_context=16
        )
        assert isinstance(pool, SamplerPool)
        yield policy, pool
    finally:
        if pool is not None:
            pool.close()
        policy.close()


async def tokens(pool: SamplerPool, affinity: str = "") -> list[tuple[int, int | None]]:
    request = TokenRequest((5, 6, 7), SamplingParams(max_tokens=8, seed=3), DEFAULT_ADAPTER, affinity=affinity)
    return [(token, delta.version) async for delta in pool.complete(request) for token in delta.token_ids]


async def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.1)


async def test_servers_are_spread_over_nodes_and_one_whose_actor_is_killed_is_replaced(
    cluster: Any, tiny_folder: str, tmp_path: Path
) -> None:
    settings = settings_of(cluster, tmp_path, sampler_replicas=2, sampler_cpus=2)  # as many as each of two nodes has
    with sampling(tiny_folder, settings) as (policy, pool):
        await pool.publish(DEFAULT_ADAPTER, policy.version, policy.save)
        expected = await tokens(pool)
        assert len(expected) == 8
        assert pool.replicas[0].url.startswith(f"http://{cluster.head_node.node_ip_address}:")
        victim = pool.replicas[0]
        before = victim.url
        port = before.rpartition(":")[2]
        (server,) = (one for one in servers() if port in one.info["cmdline"])
        actor = server.parent()
        assert actor is not None
        assert "VllmActor" in " ".join(actor.cmdline())
        actor.kill()
        assert all_have_ended([server], 30)
        await until(lambda: not victim.well)
        assert await tokens(pool, "r") == expected
        policy.run(lambda: policy.model.versions.update({DEFAULT_ADAPTER: 1}))
        await pool.publish(DEFAULT_ADAPTER, 1, policy.save)
        await until_all_are_well(pool, SECONDS)
        assert victim.url != before
        told = [await tokens(pool, f"r{index}") for index in range(4)]
        assert all(one == [(token, 1) for token, _ in expected] for one in told)


async def test_a_server_whose_node_dies_is_started_on_another(cluster: Any, tiny_folder: str, tmp_path: Path) -> None:
    size = {"num_cpus": 4, "object_store_memory": 80 * 2**20}
    third = cluster.add_node(**size)
    fourth = None
    try:
        with sampling(tiny_folder, settings_of(cluster, tmp_path, sampler_cpus=3)) as (policy, pool):
            await pool.publish(DEFAULT_ADAPTER, policy.version, policy.save)
            expected = await tokens(pool)
            (victim,) = pool.replicas
            before = victim.url
            cluster.remove_node(third, allow_graceful=False)
            third = None
            fourth = cluster.add_node(**size)
            await until(lambda: victim.url != before and victim.well)
            assert await tokens(pool) == expected
    finally:
        for node in (third, fourth):
            if node is not None:
                cluster.remove_node(node, allow_graceful=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sampler_cpus": 64, "sampler_timeout": 3.0}, r"no node of the cluster has the 64 CPUs .*`sampler_cpus`"),
        ({"vllm_python": Path("/nowhere/python")}, r"vllm_python: there is no Python at /nowhere/python \(on the node"),
        ({"sampler_ray": "127.0.0.1:1"}, r"sampler_ray: there is no Ray cluster at 127\.0\.0\.1:1"),
    ],
)
def test_servers_that_cannot_be_started_say_why_in_one_line(
    cluster: Any, tiny_folder: str, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with (
        pytest.raises(UserError, match=said) as refused,
        sampling(tiny_folder, settings_of(cluster, tmp_path, **given)),
    ):
        pass
    assert "\n" not in str(refused.value)


def test_a_node_that_sees_another_folder_or_no_model_says_so(tmp_path: Path) -> None:
    def look(model: str) -> str:
        settings = SamplerSettings(sampler="vllm", sampler_ray="auto")
        setup = ServerSetup(settings, ServedModel(model, "float32", 4, 1, True), tmp_path, "mark", "key", {})
        seen = VllmActor(setup, 0).look(again=False)
        assert isinstance(seen, UserError)
        return str(seen)

    assert "a file system that all nodes share (on the node" in look("/nowhere")
    (tmp_path / "mark").touch()
    assert "the base model is not at /nowhere (on the node" in look("/nowhere")


def test_a_training_samples_and_runs_its_agents_on_one_cluster(cluster: Any, tiny_folder: str, tmp_path: Path) -> None:
    @rollout
    def agent(task: Any, llm: Any, rollout: AttemptedRollout) -> float:
        from openai import OpenAI

        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        client = OpenAI(base_url=url, api_key=llm.api_key)
        messages: list[Any] = [{"role": "user", "content": task["word"]}]
        reply = client.chat.completions.create(model=llm.model, messages=messages, **llm.sampling_parameters)
        return sum(map(ord, reply.choices[0].message.content or "")) % 7 / 7

    store = InMemoryLightningStore()
    trained = MiniGRPO(
        tiny_folder,
        lora=LoraSettings(r=4, alpha=8),
        load_options={"device": "cpu", "dtype": "float32"},
        sampler=settings_of(cluster, tmp_path, sampler_cpus=0.5),
        total_steps=2,
        tasks_per_step=2,
        samples_per_prompt=4,
        max_new_tokens=8,
    )
    Trainer(algorithm=trained, store=store, strategy=strategy_of(cluster, runner_cpus=0.5)).fit(agent, TASKS)
    assert trained.summary["untrained"] == {}
    assert {one.status for one in all_rollouts(store)} == {"succeeded"}


_SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, TESTS)
from mini_agentic_rl.policy import LoraSettings, Policy
from mini_agentic_rl.samplers import SamplerSettings, make_sampler

policy = Policy.load(sys.argv[1], lora=LoraSettings(r=4, alpha=8), device="cpu")
settings = SamplerSettings(
    sampler="vllm", sampler_ray=sys.argv[2], vllm_python=Path(sys.argv[3]), sampler_folder=Path("weights")
)
make_sampler(settings, policy, base_name="base", prompts=[[5, 6]], model_folder=sys.argv[1], least_context=16)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_run_that_is_killed_leaves_no_server(cluster: Any, tiny_folder: str, tmp_path: Path) -> None:
    script = textwrap.dedent(_SCRIPT).replace("TESTS", repr(os.path.dirname(os.path.dirname(__file__))))
    words = [sys.executable, "-c", script, tiny_folder, cluster.address, str(stand_in(tmp_path))]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        started = servers()
        assert len(started) == 1
        process.send_signal(signal.SIGKILL)
    assert all_have_ended(started, 60)
