"""The client-server strategy with real processes: full runs, deaths, interruptions, and what is left afterwards."""

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from mini_agentic_rl.algorithm import Algorithm, Baseline
from mini_agentic_rl.emitter import emit_message, find_final_reward, get_message_value
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.execution import (
    ClientServerExecutionStrategy,
    ExecutionEvent,
    MultiprocessingEvent,
)
from mini_agentic_rl.litagent import LitAgent, rollout
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store.base import LightningStore
from mini_agentic_rl.store.http import LightningStoreClient, LightningStoreServer
from mini_agentic_rl.store.memory import InMemoryLightningStore
from mini_agentic_rl.tracer import DummyTracer
from mini_agentic_rl.trainer import Trainer
from mini_agentic_rl.types import AttemptedRollout
from processes import PythonProcess, all_have_ended, family


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    yield
    assert family() == []


def _strategy(**settings: Any) -> ClientServerExecutionStrategy:
    patience = {"graceful_timeout": 10.0, "terminate_timeout": 5.0}
    return ClientServerExecutionStrategy(**{"server_port": 0, **patience, **settings})


def _runner_of(agent: LitAgent[Any]) -> Any:
    async def run(store: LightningStore, index: int, event: ExecutionEvent) -> None:
        runner = LitAgentRunner(DummyTracer())
        with runner.run_context(agent=agent, store=store, worker_id=index):
            await runner.iter(event=event)

    return run


async def _idle(store: LightningStore, index: int, event: ExecutionEvent) -> None:
    await event.wait_async()


def _all(store: LightningStore) -> list[AttemptedRollout]:
    return [one for one in asyncio.run(store.query_rollouts()) if isinstance(one, AttemptedRollout)]


async def _wait_for_all(store: LightningStore, ids: list[str]) -> None:
    ended = await store.wait_for_rollouts(rollout_ids=ids, timeout=60)
    assert len(ended) == len(ids)


@pytest.mark.parametrize("where", ["processes", "this process"])
def test_a_baseline_run_ends_with_every_rollout_run_where_it_should_be(where: str) -> None:
    @rollout
    def agent(task: int) -> float:
        emit_message(f"{os.getpid()} torch: {'torch' in sys.modules}")
        return float(task)

    store = InMemoryLightningStore()
    strategy = _strategy(n_runners=2, main_process="algorithm" if where == "processes" else "runner")
    Trainer(algorithm=Baseline(), store=store, strategy=strategy).fit(agent, list(range(8)))
    ended = _all(store)
    assert [one.status for one in ended] == ["succeeded"] * 8
    spans = [list(asyncio.run(store.query_spans(one.rollout_id))) for one in ended]
    assert [find_final_reward(of_one) for of_one in spans] == [float(task) for task in range(8)]
    messages = {message for of_one in spans for span in of_one if (message := get_message_value(span))}
    if where == "this process":
        assert {message.split()[0] for message in messages} == {str(os.getpid())}
    else:
        assert str(os.getpid()) not in {message.split()[0] for message in messages}
        assert {message.partition(" ")[2] for message in messages} == {"torch: False"}


def test_a_runner_process_that_is_killed_is_replaced_and_its_rollout_runs_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = tmp_path / "killed"

    @rollout
    def agent(task: int) -> float:
        if task == 1 and not mark.exists():
            mark.write_text("once")
            os.kill(os.getpid(), signal.SIGKILL)
        return float(task)

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await _wait_for_all(store, [(await store.enqueue_rollout(task)).rollout_id for task in range(4)])

    store = InMemoryLightningStore()
    with caplog.at_level(logging.INFO):
        _strategy().execute(algorithm, _runner_of(agent), store)
    ended = _all(store)
    assert [one.status for one in ended] == ["succeeded"] * 4
    assert [one.attempt.sequence_id for one in ended] == [1, 2, 1, 1]
    first = asyncio.run(store.query_attempts(ended[1].rollout_id))[0]
    assert first.status == "failed"
    assert "was killed by SIGKILL" in first.metadata["error"]
    assert "runner 0 was killed by SIGKILL" in caplog.text


@pytest.mark.parametrize("main_process", ["algorithm", "runner"])
def test_the_algorithms_exception_stops_everything_and_is_raised(main_process: Any) -> None:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        raise ZeroDivisionError("in the algorithm")

    with pytest.raises(Exception, match="in the algorithm") as raised:
        _strategy(main_process=main_process).execute(algorithm, _idle, InMemoryLightningStore())
    assert type(raised.value).__name__ == "ZeroDivisionError"


def test_a_runner_that_ignores_every_request_is_killed_and_its_exit_code_is_an_error() -> None:
    def stubborn(path: str) -> Any:
        async def run(store: LightningStore, index: int, event: ExecutionEvent) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            await store.add_resources({})
            while True:
                time.sleep(60)

        return run

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        while await store.get_latest_resources() is None:
            await asyncio.sleep(0.02)

    impatient = {"graceful_timeout": 0.1, "terminate_timeout": 0.1}
    with pytest.raises(RuntimeError, match=r"process 0 was killed by SIGKILL.*allowed_exit_codes"):
        _strategy(**impatient).execute(algorithm, stubborn(""), InMemoryLightningStore())
    allowed = {**impatient, "allowed_exit_codes": (0, -9)}
    _strategy(**allowed).execute(algorithm, stubborn(""), InMemoryLightningStore())


def test_without_a_graceful_timeout_a_process_that_has_ended_is_not_interrupted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def runner(store: LightningStore, index: int, event: ExecutionEvent) -> None:
        await store.add_resources({})

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        while "runner 0 exited with code 0" not in caplog.text:
            await asyncio.sleep(0.02)

    with caplog.at_level(logging.INFO):
        _strategy(graceful_timeout=0.0).execute(algorithm, runner, InMemoryLightningStore())
    assert "did not stop" not in caplog.text


def test_a_bundle_that_cannot_be_sent_names_what_stands_in_the_way() -> None:
    class Agent(LitAgent[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.guard = threading.Lock()

    with pytest.raises(UserError, match=r"\.guard \(_thread\.lock\) cannot be sent to another process.*'shm'"):
        Trainer(algorithm=Baseline(), strategy=_strategy()).fit(Agent(), [1])


def test_a_bundle_that_cannot_be_loaded_ends_the_run_with_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(
        f"import os\nif os.getpid() != {os.getpid()}:\n    raise ImportError('only at home')\n\n"
        "async def runner(store, index, event): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]  # written above

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await asyncio.sleep(60)

    with pytest.raises(Exception, match="only at home"):
        _strategy().execute(algorithm, only_here.runner, InMemoryLightningStore())


_SCRIPT = """
import asyncio, os, subprocess, sys
from mini_agentic_rl.execution import ClientServerExecutionStrategy
from mini_agentic_rl.litagent import rollout
from mini_agentic_rl.trainer import Trainer

@rollout
def agent(task):
    sleeper = subprocess.Popen(["sleep", "60"])
    print("pids", os.getpid(), sleeper.pid, flush=True)
    sleeper.wait()

strategy = ClientServerExecutionStrategy(server_port=0, graceful_timeout=2, terminate_timeout=2)
try:
    Trainer(algorithm="baseline", strategy=strategy).fit(agent, [1])
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_or_killed_run_leaves_no_process_and_no_file(number: signal.Signals, tmp_path: Path) -> None:
    script, temporary = tmp_path / "run.py", tmp_path / "temporary"
    temporary.mkdir()
    script.write_text(f"import tempfile\ntempfile.tempdir = {str(temporary)!r}\n{_SCRIPT}")
    with PythonProcess(script) as process:
        while process.stdout.count("\n") < 1:
            assert process.is_alive, process.stderr
            time.sleep(0.01)
        started = [psutil.Process(int(pid)) for line in process.stdout.splitlines() for pid in line.split()[1:]]
        assert len(started) == 2
        process.send_signal(number)
        assert process.wait(60) == (0 if number == signal.SIGINT else -signal.SIGKILL)
        rest = process.stdout.splitlines()[1:]
    assert rest == (["interrupted"] if number == signal.SIGINT else [])
    assert all_have_ended(started, 10)
    end = time.monotonic() + 10
    while list(temporary.iterdir()) and time.monotonic() < end:  # of a killed run the watchdog removes them
        time.sleep(0.02)
    assert list(temporary.iterdir()) == []


def test_an_external_store_serves_an_algorithm_and_two_sets_of_runners_one_of_which_dies(tmp_path: Path) -> None:
    """As with `agl store` in one terminal, the algorithm in a second one, and runners in two more."""
    script = textwrap.dedent(
        f"""
        import time
        from mini_agentic_rl.execution import ClientServerExecutionStrategy
        from mini_agentic_rl.litagent import rollout
        from mini_agentic_rl.trainer import Trainer

        @rollout
        def agent(task):
            if task == 3 and not open({str(tmp_path / "victim")!r}, "a+").tell():
                with open({str(tmp_path / "victim")!r}, "w") as file:
                    import os
                    file.write(str(os.getppid()) + "\\n")
                time.sleep(60)
            return float(task)

        try:
            Trainer(algorithm="baseline", strategy=ClientServerExecutionStrategy(graceful_timeout=2)).fit(agent)
        except KeyboardInterrupt:
            print("stopped", flush=True)
        """
    )

    class Asks(Algorithm):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            store = self.get_store()
            ids = [(await store.enqueue_rollout(task)).rollout_id for task in range(8)]
            victim = tmp_path / "victim"
            while not (victim.exists() and victim.read_text().endswith("\n")):
                await asyncio.sleep(0.02)
            os.kill(int(victim.read_text()), signal.SIGKILL)
            await _wait_for_all(store, ids)

    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=0, api_key="secret")
    asyncio.run(server.start())
    environment = {
        "AGL_CURRENT_ROLE": "runner",
        "AGL_SERVER_PORT": server.endpoint.rpartition(":")[2],
        "AGL_API_KEY": "secret",
    }
    program = tmp_path / "runners.py"
    program.write_text(script)
    runners = [PythonProcess(program, environment=environment) for _ in range(2)]
    try:
        client = LightningStoreClient(server.endpoint, api_key="secret")
        strategy = ClientServerExecutionStrategy(role="algorithm", managed_store=False)
        Trainer(algorithm=Asks(), store=client, strategy=strategy).fit(rollout(lambda task: None))
        for process in runners:
            process.send_signal(signal.SIGINT)
            process.wait(20)
        outputs = sorted(process.stdout for process in runners)
    finally:
        for process in runners:
            process.__exit__(None, None, None)
        asyncio.run(server.stop())
    assert outputs == ["", "stopped\n"]
    ended = _all(store)
    assert [one.status for one in ended] == ["succeeded"] * 8
    assert [one.attempt.sequence_id for one in ended] == [1, 1, 1, 2, 1, 1, 1, 1]
    workers = {worker.worker_id for worker in asyncio.run(store.query_workers())}
    assert len(workers) == 2
    assert all(worker.startswith("runner-0@") for worker in workers)


def test_settings_come_from_the_environment_and_impossible_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"CURRENT_ROLE": "algorithm", "SERVER_HOST": "h", "SERVER_PORT": "9999", "MANAGED_STORE": "0"}
    for name, value in variables.items():
        monkeypatch.setenv(f"AGL_{name}", value)
    strategy = ClientServerExecutionStrategy()
    chosen = (strategy.role, strategy.server_host, strategy.server_port, strategy.managed_store)
    assert chosen == ("algorithm", "h", 9999, False)
    assert ClientServerExecutionStrategy(role="both", server_port=1).server_port == 1
    monkeypatch.setenv("AGL_CURRENT_ROLE", "conductor")
    with pytest.raises(ValueError, match="AGL_CURRENT_ROLE"):
        ClientServerExecutionStrategy()
    for settings in (
        {"n_runners": 0},
        {"main_process": "both"},
        {"graceful_timeout": -1},
        {"terminate_timeout": -1},
        {"silent_seconds": 0},
        {"server_port": 0, "role": "runner"},
    ):
        with pytest.raises(ValueError, match=next(iter(settings))):
            ClientServerExecutionStrategy(**{"role": "both", **settings})


async def test_an_event_set_in_another_process_is_seen_here() -> None:
    event = MultiprocessingEvent(ctx=multiprocessing.get_context("fork"))
    waiting = asyncio.create_task(event.wait_async())
    await asyncio.sleep(0)
    assert not event.is_set()
    process = multiprocessing.get_context("fork").Process(target=event.set)
    process.start()
    await asyncio.wait_for(waiting, 10)
    process.join()
    assert event.wait(0)
    event.clear()
    assert not event.is_set()
