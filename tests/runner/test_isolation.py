"""Agents in a process of their own: everything they can do to it ends their attempt with a reason, and no more."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from mini_agentic_rl.emitter import emit_message, emit_reward, find_reward_spans, get_message_value, get_reward_value
from mini_agentic_rl.execution import ThreadingEvent
from mini_agentic_rl.litagent import LitAgent, rollout
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.semconv import AGL_EXCEPTION
from mini_agentic_rl.store.base import LightningStore
from mini_agentic_rl.store.memory import InMemoryLightningStore
from mini_agentic_rl.tracer import DummyTracer, OtelTracer, Tracer, get_active_tracer
from mini_agentic_rl.types import LLM, Attempt, AttemptedRollout, Hook, Rollout, RolloutConfig, Span
from processes import all_have_ended, family


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


async def _run(
    store: LightningStore,
    agent: LitAgent[Any],
    tasks: Sequence[Any],
    *,
    hooks: Sequence[Hook] = (),
    tracer: Tracer | None = None,
    limits: dict[Any, float] | None = None,
) -> list[AttemptedRollout]:
    """Every task, one after the other, in one process as long as it lives; `limits` are timeouts by task."""
    for task in tasks:
        await store.enqueue_rollout(task, config=RolloutConfig(timeout_seconds=(limits or {}).get(task)))
    runner = LitAgentRunner(tracer or DummyTracer(), max_rollouts=len(tasks), isolation="process")
    with runner.run_context(agent=agent, store=store, hooks=hooks, worker_id=0):
        await asyncio.wait_for(runner.iter(), 60)
    assert family() == []
    ended = [await store.get_rollout_by_id(one.rollout_id) for one in await store.query_rollouts()]
    return [one for one in ended if isinstance(one, AttemptedRollout)]


def _reason(attempt: Attempt) -> str:
    return str(attempt.metadata.get("error"))


async def _messages(store: LightningStore, ended: Rollout) -> list[str]:
    spans = await store.query_spans(ended.rollout_id)
    return [message for span in spans if (message := get_message_value(span)) is not None]


async def _rewards(store: LightningStore, ended: Rollout) -> list[float | None]:
    return [get_reward_value(span) for span in find_reward_spans(list(await store.query_spans(ended.rollout_id)))]


@pytest.mark.parametrize("tracer", [OtelTracer, DummyTracer])
async def test_what_an_agent_leaves_is_the_same_as_in_the_runners_process(
    store: InMemoryLightningStore, tracer: type[Tracer]
) -> None:
    seen_by_hook: list[Any] = []

    class Agent(LitAgent[str]):
        def rollout(self, task: str, resources: Any, rollout: AttemptedRollout) -> Any:
            emit_message(f"{task} {os.getpid()} {self.runner.worker_id} {resources['main'].model}")
            if task == "number":
                return 0.75
            if task == "emits":
                emit_reward({"accuracy": 1.0, "format": 0.0}, primary_key="accuracy")
                return None
            if task == "metadata":
                rollout.metadata["reward"] = 0.25
                rollout.metadata["output"] = "forty-two"
                return rollout
            if task == "spans":
                active = get_active_tracer()
                assert active is not None
                return [*active.get_last_trace(), Span.from_attributes(name="mine", attributes={"k": 1})]
            if task == "raises":
                raise LookupError("no such table")
            if task == "exits":
                sys.exit(3)
            return {"not": "a result"}

    class Watch(Hook):
        async def on_trace_end(self, tracer: Tracer, rollout: Rollout) -> None:
            seen_by_hook.append(
                [get_message_value(span) for span in tracer.get_last_trace() if get_message_value(span)]
            )

        async def on_rollout_end(self, rollout: Rollout, spans: Sequence[Span]) -> None:
            seen_by_hook.append(rollout.metadata.get("output"))

    await store.add_resources({"main": LLM(endpoint="http://h/v1", model="m")})
    tasks = ["number", "emits", "metadata", "spans", "raises", "exits", "text"]
    ended = await _run(store, Agent(), tasks, hooks=[Watch()], tracer=tracer())
    number, emits, metadata, spans, raises, exits, text = ended
    assert [one.status for one in ended] == ["succeeded"] * 4 + ["failed"] * 3
    assert await _rewards(store, number) == [0.75]
    assert await _rewards(store, emits) == [1.0]
    assert await _rewards(store, metadata) == [0.25]
    assert [span.attributes for span in await store.query_spans(spans.rollout_id, name="mine")] == [{"k": 1}]
    assert _reason(raises.attempt) == "the agent: LookupError: no such table"
    assert "SystemExit: 3" in _reason(exits.attempt)
    assert "not dict" in _reason(text.attempt)
    exception = (await store.query_spans(raises.rollout_id, name=AGL_EXCEPTION))[0]
    assert exception.attributes["exception.type"] == "LookupError"
    assert 'raise LookupError("no such table")' in exception.attributes["exception.stacktrace"]
    messages = [await _messages(store, one) for one in ended]
    processes = {message.split()[1] for (message,) in messages}
    assert len(processes) == 1
    assert processes != {str(os.getpid())}
    assert [message.replace(processes.copy().pop(), "") for (message,) in messages] == [
        f"{task}  runner-0 m" for task in tasks
    ]
    assert seen_by_hook[::2] == messages
    assert seen_by_hook[1::2] == [None, None, "forty-two", None, None, None, None]
    for one in ended:
        order = [span.sequence_id for span in await store.query_spans(one.rollout_id)]
        assert order == sorted(set(order))
        parents = {span.parent_id for span in await store.query_spans(one.rollout_id, name_contains="agentlightning")}
        assert len(parents) == 1


async def test_a_hanging_agent_is_killed_with_all_it_has_started_and_the_next_rollout_succeeds(
    store: InMemoryLightningStore, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    away = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({str(pids)!r}, "a").write(f"{{os.getpid()}}\\n")
        time.sleep(60)
    os._exit(0)
time.sleep(60)
"""

    @rollout
    def agent(task: str) -> float:
        if task == "hangs":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            started = subprocess.Popen([sys.executable, "-c", away])
            while not pids.exists() or not pids.read_text().endswith("\n"):
                time.sleep(0.01)
            with pids.open("a") as file:
                file.write(f"{started.pid}\n{os.getpid()}\n")
            emit_message("now")
            while True:
                time.sleep(60)
        return 1.0

    ended = await _run(store, agent, ["before", "hangs", "after"], limits={"hangs": 3})
    assert [one.status for one in ended] == ["succeeded", "failed", "succeeded"]
    assert ended[1].attempt.status == "timeout"
    assert _reason(ended[1].attempt) == "the agent took longer than timeout_seconds=3, which `rollout_timeout` sets"
    assert await _messages(store, ended[1]) == ["now"]
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 3
    assert [pid for pid in started if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []


async def test_a_process_that_dies_fails_its_attempt_with_the_way_it_died(store: InMemoryLightningStore) -> None:
    @rollout
    def agent(task: str) -> float:
        emit_message(task)
        if task == "leaves":
            os._exit(7)
        if task == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        return 1.0

    tasks = ["leaves", "crashes", "works"]
    ended = await _run(store, agent, tasks)
    assert [one.attempt.status for one in ended] == ["failed", "failed", "succeeded"]
    assert [_reason(one.attempt) for one in ended[:2]] == [
        "the agent: ExitedError: its process exited with code 7",
        "the agent: ExitedError: its process was killed by SIGSEGV",
    ]
    assert [await _messages(store, one) for one in ended] == [[task] for task in tasks]


async def test_an_async_agent_keeps_its_event_loop_and_reaches_the_store_of_the_runner(
    store: InMemoryLightningStore,
) -> None:
    class Agent(LitAgent[str]):
        loop: Any = None

        async def rollout_async(self, task: str, rollout: AttemptedRollout) -> float:
            first, self.loop = self.loop in (None, asyncio.get_running_loop()), asyncio.get_running_loop()
            shared = self.runner.get_store()
            mine, missing = await asyncio.gather(
                shared.get_rollout_by_id(rollout.rollout_id), shared.get_rollout_by_id("ro-unknown")
            )
            try:
                await shared.update_rollout("ro-unknown", status="cancelled")
            except ValueError as error:
                emit_message(str(error))
            await shared.close()
            return float(first and mine.input == task and missing is None)

    agent = Agent()
    ended = await _run(store, agent, ["one", "two"])
    assert [await _rewards(store, one) for one in ended] == [[1.0], [1.0]]
    assert await _messages(store, ended[0]) == ["no rollout ro-unknown"]
    assert agent.loop is None


async def test_an_answer_of_the_store_that_cannot_be_read_fails_the_call_that_waits_and_no_later_one() -> None:
    class AwkwardError(Exception):
        def __init__(self, code: int, text: str) -> None:
            super().__init__(text)

    class Awkward(InMemoryLightningStore):
        async def get_worker_by_id(self, worker_id: str) -> Any:
            raise AwkwardError(7, "no")

    class Agent(LitAgent[str]):
        async def rollout_async(self, task: str, rollout: AttemptedRollout) -> float:
            shared = self.runner.get_store()
            try:
                await asyncio.wait_for(shared.get_worker_by_id("w"), 30)
            except RuntimeError as error:
                emit_message(str(error))
            return float((await shared.get_rollout_by_id(rollout.rollout_id)).input == task)

    store = Awkward()
    ended = await _run(store, Agent(), ["one", "two"])
    assert [await _rewards(store, one) for one in ended] == [[1.0], [1.0]]
    assert "cannot be read here" in (await _messages(store, ended[0]))[0]


async def test_an_agent_that_cannot_be_sent_fails_its_attempts_by_naming_what_stands_in_the_way(
    store: InMemoryLightningStore,
) -> None:
    guard = threading.Lock()

    class Client:
        def __init__(self) -> None:
            self.lock = guard

    client = Client()

    @rollout
    def agent(task: str) -> float:
        return float(client.lock is not None)

    ended = await _run(store, agent, ["x"])
    reason = _reason(ended[0].attempt)
    assert "'client'" in reason
    assert ".lock (_thread.lock) cannot be sent to another process" in reason
    assert "isolation='thread'" in reason


async def test_an_agent_whose_module_cannot_be_imported_there_fails_its_attempts_with_the_error(
    store: InMemoryLightningStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent_of_two_minds.py").write_text(
        f"import os\nif os.getpid() != {os.getpid()}:\n    raise ImportError('only at home')\n"
        "from mini_agentic_rl.litagent import LitAgent\n\nclass Agent(LitAgent):\n    def rollout(self, task): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import agent_of_two_minds  # type: ignore[import-not-found]  # written above

    ended = await _run(store, agent_of_two_minds.Agent(), ["x"])
    assert _reason(ended[0].attempt) == "the agent: ImportError: only at home"
    exception = (await store.query_spans(ended[0].rollout_id, name=AGL_EXCEPTION))[0]
    assert "agent_of_two_minds.py" in exception.attributes["exception.stacktrace"]


async def test_a_stop_ends_the_process_and_gives_the_rollout_back(store: InMemoryLightningStore) -> None:
    @rollout
    def agent(task: str) -> None:
        emit_message("under way")
        subprocess.run(["sleep", "60"], check=False)

    queued = await store.enqueue_rollout("x")
    runner, event = LitAgentRunner(DummyTracer(), isolation="process"), ThreadingEvent()
    with runner.run_context(agent=agent, store=store):
        task = asyncio.create_task(runner.iter(event=event))
        while not await _messages(store, queued):
            await asyncio.sleep(0.02)
        assert len(family()) == 2
        event.set()
        await asyncio.wait_for(task, 30)
    assert family() == []
    given_back = await store.get_rollout_by_id(queued.rollout_id)
    assert isinstance(given_back, AttemptedRollout)
    assert (given_back.status, given_back.attempt.status) == ("requeuing", "failed")
    assert _reason(given_back.attempt) == "the run was stopped"


async def test_an_idle_runner_starts_no_process(store: InMemoryLightningStore) -> None:
    runner, event = LitAgentRunner(DummyTracer(), isolation="process"), ThreadingEvent()
    with runner.run_context(agent=rollout(lambda task: None), store=store):
        task = asyncio.create_task(runner.iter(event=event))
        await asyncio.sleep(0.1)
        assert family() == []
        event.set()
        await asyncio.wait_for(task, 30)


def test_a_script_that_is_killed_takes_its_agents_along(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio, os, subprocess, sys
            from mini_agentic_rl.litagent import LitAgent
            from mini_agentic_rl.runner import LitAgentRunner
            from mini_agentic_rl.store.memory import InMemoryLightningStore

            class Agent(LitAgent):
                def rollout(self, task):
                    sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
                    print(os.getpid(), sleeper.pid, flush=True)
                    sleeper.wait()

            async def main():
                runner = LitAgentRunner(isolation="process")
                with runner.run_context(agent=Agent(), store=InMemoryLightningStore()):
                    await runner.step("x")

            asyncio.run(main())
            """
        )
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        process.kill()
    assert all_have_ended(started, 10)


def test_an_unknown_isolation_is_named() -> None:
    with pytest.raises(ValueError, match="isolation"):
        LitAgentRunner(DummyTracer(), isolation="container")  # type: ignore[arg-type]  # the mistake under test
