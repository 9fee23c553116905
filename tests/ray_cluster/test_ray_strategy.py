"""Runs on a real Ray cluster of two nodes on this computer: `make test-ray`, in an environment that has Ray."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from letters import TASKS, algorithm

from mini_agentic_rl.algorithm import Baseline
from mini_agentic_rl.emitter import emit_message, find_final_reward, get_message_value
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.execution import ExecutionEvent, RayExecutionStrategy
from mini_agentic_rl.litagent import LitAgent, rollout
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store import InMemoryLightningStore, LightningStore
from mini_agentic_rl.tracer import DummyTracer
from mini_agentic_rl.trainer import Trainer
from mini_agentic_rl.types import AttemptedRollout
from processes import all_have_ended

pytest.importorskip("ray", reason="Ray is not installed: `make test-ray` installs it and runs these tests")

SECONDS = 120


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a cluster of two nodes with room for two runners each."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **size})
    made.add_node(**size)
    yield made
    made.shutdown()
    assert all_have_ended(_actors(), 20)


@pytest.fixture(autouse=True)
def _no_runner_is_left() -> Iterator[None]:
    yield
    assert all_have_ended(_actors(), 20), _actors()


def _actors() -> list[psutil.Process]:
    """Return the processes of runners: Ray names them after their class."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if " ".join(process.info["cmdline"] or []).startswith("ray::RunnerActor"):
            found.append(process)
    return found


def _strategy(cluster: Any, **settings: Any) -> RayExecutionStrategy:
    return RayExecutionStrategy(**{"address": cluster.address, "n_runners": 2, "graceful_timeout": 20.0, **settings})


def _runner_of(agent: LitAgent[Any]) -> Any:
    async def run(store: LightningStore, index: int, event: ExecutionEvent) -> None:
        runner = LitAgentRunner(DummyTracer(), heartbeat_interval=1.0)
        with runner.run_context(agent=agent, store=store, worker_id=index):
            await runner.iter(event=event)

    return run


def _all(store: LightningStore) -> list[AttemptedRollout]:
    async def query() -> list[Any]:
        return list(await store.query_rollouts())

    return [one for one in asyncio.run(query()) if isinstance(one, AttemptedRollout)]


def _enqueues(count: int, meanwhile: Callable[[], None] | None = None) -> Any:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        ids = [(await store.enqueue_rollout(task)).rollout_id for task in range(count)]
        if meanwhile is not None:
            await asyncio.to_thread(meanwhile)
        assert len(await store.wait_for_rollouts(rollout_ids=ids, timeout=SECONDS)) == count

    return algorithm


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
    strategy = _strategy(cluster, n_runners=4, runner_env={"env_vars": {"TOLD": "by-ray"}})
    Trainer(algorithm=Baseline(), store=store, strategy=strategy).fit(agent, list(range(12)))
    ended = _all(store)
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
    Trainer(algorithm=trained, store=store, strategy=_strategy(cluster)).fit(agent, TASKS)
    assert trained.summary["untrained"] == {}
    ended = _all(store)
    assert {one.status for one in ended} == {"succeeded"}

    async def told() -> set[str | None]:
        spans = await store.query_spans(ended[0].rollout_id)
        return {message for span in spans if (message := get_message_value(span))}

    (endpoint,) = asyncio.run(told())
    assert str(endpoint).startswith(f"http://{cluster.head_node.node_ip_address}:")


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
        _strategy(cluster, n_runners=1).execute(_enqueues(3), _runner_of(agent), store)
    ended = _all(store)
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
        time.sleep(1.0)
        return 1.0

    def kill() -> None:
        while not any(path.name.startswith(third.node_id) for path in tmp_path.iterdir()):
            time.sleep(0.02)
        cluster.remove_node(third, allow_graceful=False)

    store = InMemoryLightningStore()
    _strategy(cluster, n_runners=6).execute(_enqueues(12, kill), _runner_of(agent), store)
    ended = _all(store)
    assert [one.status for one in ended] == ["succeeded"] * 12
    assert max(one.attempt.sequence_id for one in ended) == 2
    end = time.monotonic() + 20
    while _sleepers() and time.monotonic() < end:
        time.sleep(0.1)
    assert _sleepers() == []


def _sleepers() -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "300"]]


def test_runners_come_with_the_queue_and_go_after_it(cluster: Any) -> None:
    @rollout
    def agent(task: int) -> float:
        time.sleep(1.0 if task < 4 else 0.2)
        return 1.0

    counts: list[int] = []

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        async def until(count: int) -> None:
            end = time.monotonic() + SECONDS
            while len(_actors()) != count:
                assert time.monotonic() < end
                await asyncio.sleep(0.1)
            counts.append(count)

        await until(0)
        ids = [(await store.enqueue_rollout(task)).rollout_id for task in range(8)]
        await until(3)
        await store.wait_for_rollouts(rollout_ids=ids, timeout=SECONDS)
        await until(0)
        one = (await store.enqueue_rollout(9)).rollout_id
        await store.wait_for_rollouts(rollout_ids=[one], timeout=SECONDS)

    store = InMemoryLightningStore()
    settings = {"n_runners": 3, "min_runners": 0, "runner_idle_seconds": 0.5}
    _strategy(cluster, **settings).execute(algorithm, _runner_of(agent), store)
    assert counts == [0, 3, 0]
    assert [(one.status, one.attempt.sequence_id) for one in _all(store)] == [("succeeded", 1)] * 9


def test_runners_that_no_node_has_room_for_wait_and_say_for_what(
    cluster: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_agentic_rl.execution.ray.runners._WAITING_SECONDS", 1.0)

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await store.enqueue_rollout(1)
        end = time.monotonic() + SECONDS
        while "no runner has a place yet" not in caplog.text:
            assert time.monotonic() < end
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.INFO):
        _strategy(cluster, runner_cpus=64).execute(algorithm, _idle, InMemoryLightningStore())
    assert "no node of the cluster has the 64 CPUs that a runner asks for (`runner_cpus`" in caplog.text


async def _idle(store: LightningStore, index: int, event: ExecutionEvent) -> None:
    await event.wait_async()


def test_the_algorithms_exception_stops_the_runners_and_is_raised(cluster: Any) -> None:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        end = time.monotonic() + SECONDS
        while not _actors():
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        raise ZeroDivisionError("in the algorithm")

    async def idle(store: LightningStore, index: int, event: ExecutionEvent) -> None:
        await event.wait_async()

    with pytest.raises(ZeroDivisionError, match="in the algorithm"):
        _strategy(cluster).execute(algorithm, idle, InMemoryLightningStore())


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
    _strategy(cluster, n_runners=1, graceful_timeout=0.5).execute(algorithm, stubborn(tmp_path / "begun"), store)
    assert [(one.status, one.attempt.status) for one in _all(store)] == [("requeuing", "failed")]


def test_a_bundle_that_cannot_be_loaded_ends_the_run_with_the_error(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(
        f"import os\nif os.getpid() != {os.getpid()}:\n    raise ImportError('only at home')\n\n"
        "async def runner(store, index, event): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]  # written above

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await asyncio.sleep(SECONDS)

    with pytest.raises(Exception, match="only at home"):
        _strategy(cluster).execute(algorithm, only_here.runner, InMemoryLightningStore())


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
        _strategy(cluster, **settings).execute(_enqueues(0), _idle, InMemoryLightningStore())
    assert "\n" not in str(refused.value)


def test_a_working_directory_is_sent_to_the_nodes(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "words.txt").write_text("here")

    @rollout
    def agent(task: int) -> float:
        return 1.0 if Path("words.txt").read_text() == "here" else 0.0

    store = InMemoryLightningStore()
    strategy = _strategy(cluster, n_runners=1, runner_env=str(tmp_path / "sent"))
    strategy.execute(_enqueues(1), _runner_of(agent), store)
    assert [one.status for one in _all(store)] == ["succeeded"]


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


def test_an_agent_that_cannot_be_sent_names_what_stands_in_the_way(cluster: Any) -> None:
    class Agent(LitAgent[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.guard = threading.Lock()

    with pytest.raises(UserError, match=r"\.guard \(_thread\.lock\) cannot be sent to another process.*'shm'"):
        Trainer(algorithm=Baseline(), strategy=_strategy(cluster)).fit(Agent(), [1])
