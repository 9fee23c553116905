"""Runners and nodes of a Ray cluster that die, and runs that end before their time."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_runs import SECONDS, all_rollouts, enqueues, runner_of, strategy_of

from mini_agentic_rl.execution import ExecutionEvent
from mini_agentic_rl.litagent import rollout
from mini_agentic_rl.store import InMemoryLightningStore, LightningStore
from processes import all_have_ended


def test_a_runner_that_is_killed_is_replaced_and_its_rollout_runs_again(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = tmp_path / "killed"

    @rollout
    def agent(task: int) -> float:
        if task == 1 and not mark.exists():
            mark.write_text("once")
            os.kill(os.getpid(), signal.SIGKILL)
        return float(task)

    store = InMemoryLightningStore()
    with caplog.at_level(logging.INFO):
        strategy_of(cluster, n_runners=1).execute(enqueues(3), runner_of(agent), store)
    ended = all_rollouts(store)
    assert [(one.status, one.attempt.sequence_id) for one in ended] == [
        ("succeeded", 1),
        ("succeeded", 2),
        ("succeeded", 1),
    ]

    async def first() -> Any:
        return (await store.query_attempts(ended[1].rollout_id))[0]

    lost = asyncio.run(first())
    assert lost.status == "failed"
    assert "was lost: " in lost.metadata["error"]
    assert [one.attempt.worker_id for one in ended] == ["runner-0", "runner-0@2", "runner-0@2"]
    assert "is lost: " in caplog.text
    assert "runner 0 is started again" in caplog.text


def test_all_rollouts_end_though_a_node_dies_with_its_runners(cluster: Any, tmp_path: Path) -> None:
    third = cluster.add_node(num_cpus=4, object_store_memory=80 * 2**20)

    @rollout
    def agent(task: int) -> float:
        import ray

        (tmp_path / f"{ray.get_runtime_context().get_node_id()}-{os.getpid()}").touch()
        subprocess.Popen(["sh", "-c", "sleep 300 & wait"], start_new_session=True)
        until_one_runs_on_the_third()  # else the others may have run all of them before it has a runner
        time.sleep(1.0)
        return 1.0

    def until_one_runs_on_the_third(node_id: str = third.node_id) -> None:
        end = time.monotonic() + SECONDS
        while not any(path.name.startswith(node_id) for path in tmp_path.iterdir()):
            assert time.monotonic() < end, "no runner has come to the third node"
            time.sleep(0.02)

    def kill() -> None:
        until_one_runs_on_the_third()
        cluster.remove_node(third, allow_graceful=False)

    store = InMemoryLightningStore()
    strategy_of(cluster, n_runners=6).execute(enqueues(12, kill), runner_of(agent), store)
    ended = all_rollouts(store)
    assert [one.status for one in ended] == ["succeeded"] * 12
    assert max(one.attempt.sequence_id for one in ended) == 2
    end = time.monotonic() + 20
    while _sleepers() and time.monotonic() < end:
        time.sleep(0.1)
    assert _sleepers() == []


def _sleepers() -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "300"]]


def test_a_runner_that_does_not_stop_is_killed_and_its_rollout_is_given_back(cluster: Any, tmp_path: Path) -> None:
    def stubborn(begun: Path) -> Any:
        async def run(store: LightningStore, index: int, event: ExecutionEvent) -> None:
            await store.dequeue_rollout(worker_id=f"runner-{index}")
            begun.touch()
            while True:
                time.sleep(60)

        return run

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await store.enqueue_rollout(1)
        end = time.monotonic() + SECONDS
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < end
            await asyncio.sleep(0.1)

    store = InMemoryLightningStore()
    strategy_of(cluster, n_runners=1, graceful_timeout=0.5).execute(algorithm, stubborn(tmp_path / "begun"), store)
    assert [(one.status, one.attempt.status) for one in all_rollouts(store)] == [("requeuing", "failed")]


_SCRIPT = """
import os, subprocess, sys
from mini_agentic_rl.execution import RayExecutionStrategy
from mini_agentic_rl.litagent import rollout
from mini_agentic_rl.trainer import Trainer

@rollout
def agent(task):
    sleeper = subprocess.Popen(["sh", "-c", "sleep 600 & echo $! >> FILE; wait"], start_new_session=True)
    with open("FILE", "a") as file:
        file.write(f"{os.getpid()}\\n{sleeper.pid}\\n")
    sleeper.wait()

strategy = RayExecutionStrategy(n_runners=2, address=sys.argv[1], graceful_timeout=5)
try:
    Trainer(algorithm="baseline", strategy=strategy).fit(agent, [1, 2])
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_or_killed_run_leaves_no_process(cluster: Any, number: signal.Signals, tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = textwrap.dedent(_SCRIPT).replace("FILE", str(told))
    with subprocess.Popen(
        [sys.executable, "-c", script, cluster.address], stdout=subprocess.PIPE, text=True
    ) as process:
        end = time.monotonic() + SECONDS
        while not told.exists() or len(told.read_text().split()) < 6:
            assert time.monotonic() < end
            time.sleep(0.05)
        started = [psutil.Process(int(pid)) for pid in told.read_text().split()]
        process.send_signal(number)
        assert process.stdout is not None
        rest = process.stdout.read()
    assert ("interrupted\n" in rest) == (number == signal.SIGINT)
    assert process.returncode == (0 if number == signal.SIGINT else -signal.SIGKILL)
    assert all_have_ended(started, 30)
