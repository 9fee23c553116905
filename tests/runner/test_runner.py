"""The runner on a real store: what agents and hooks return, raise, or fail to return."""

import asyncio
import logging
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from mini_agentic_rl.emitter import (
    emit_message,
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_message_value,
    get_reward_value,
)
from mini_agentic_rl.execution import ThreadingEvent
from mini_agentic_rl.litagent import LitAgent, llm_rollout, rollout
from mini_agentic_rl.runner import LitAgentRunner, LoggingHook, Runner
from mini_agentic_rl.semconv import AGL_EXCEPTION
from mini_agentic_rl.store import LightningStore
from mini_agentic_rl.store.memory import InMemoryLightningStore
from mini_agentic_rl.tracer import DummyTracer, get_active_tracer
from mini_agentic_rl.types import LLM, Attempt, AttemptedRollout, Hook, Rollout, RolloutConfig, Span


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


async def _run_queue(
    store: InMemoryLightningStore, agent: LitAgent[Any], hooks: Sequence[Hook] = (), **settings: Any
) -> None:
    """Run everything that is queued, then stop; with `max_rollouts` the runner ends by itself."""
    runner, event = LitAgentRunner(DummyTracer(), **settings), ThreadingEvent()
    queued = [queued.rollout_id for queued in await store.query_rollouts(status_in=["queuing"])]
    with runner.run_context(agent=agent, store=store, hooks=hooks, worker_id=0):
        task = asyncio.create_task(runner.iter(event=event))
        await store.wait_for_rollouts(rollout_ids=queued, timeout=30)
        if "max_rollouts" not in settings:
            event.set()
        await asyncio.wait_for(task, 30)


async def _latest(store: InMemoryLightningStore, rollout_id: str) -> Attempt:
    attempt = await store.get_latest_attempt(rollout_id)
    assert attempt is not None
    return attempt


async def _reason(store: InMemoryLightningStore, rollout_id: str) -> str:
    return str((await _latest(store, rollout_id)).metadata.get("error"))


async def _rewards(store: InMemoryLightningStore, rollout_id: str) -> list[float | None]:
    return [get_reward_value(span) for span in find_reward_spans(list(await store.query_spans(rollout_id)))]


async def _step(store: InMemoryLightningStore, agent: LitAgent[Any], hooks: Sequence[Hook] = ()) -> Rollout:
    runner = LitAgentRunner()
    with runner.run_context(agent=agent, store=store, hooks=hooks):
        return await runner.step("task")


async def _failed_step(
    store: InMemoryLightningStore, agent: LitAgent[Any], hooks: Sequence[Hook] = (), error: type[Exception] = Exception
) -> Rollout:
    """Run a step that raises; return its rollout, the latest of the store."""
    with pytest.raises(error):
        await _step(store, agent, hooks)
    return (await store.query_rollouts(sort_by="start_time"))[-1]


async def test_spans_that_an_agent_returns_are_added_once(store: InMemoryLightningStore) -> None:
    @rollout
    def agent(task: str) -> list[Any]:
        tracer = get_active_tracer()
        assert tracer is not None
        emit_message("already there")
        mine = Span.from_attributes(name="mine", attributes={"k": 1})
        apart = [emit_message("apart", propagate=False), emit_reward(0.75, propagate=False)]
        return [*tracer.get_last_trace(), mine, *apart]

    ended = await _step(store, agent)
    spans = list(await store.query_spans(ended.rollout_id))
    assert [get_message_value(span) for span in spans if get_message_value(span)] == ["already there", "apart"]
    assert [span.attributes for span in spans if span.name == "mine"] == [{"k": 1}]
    assert await _rewards(store, ended.rollout_id) == [0.75]
    assert len({span.sequence_id for span in spans}) == len(spans)


async def test_step_uses_the_resources_and_the_mode_given(store: InMemoryLightningStore) -> None:
    class Agent(LitAgent[str]):
        async def validation_rollout_async(self, task: str, resources: Any, rollout: Rollout) -> float:
            assert self.runner is runner
            assert self.tracer is runner.tracer
            return float(len(resources["main"].model)) if rollout.mode == "val" else -1.0

    runner = LitAgentRunner(DummyTracer())
    with runner.run_context(agent=Agent(), store=store):
        ended = await runner.step("x", resources={"main": LLM(endpoint="http://h/v1", model="four")}, mode="val")
    assert await _rewards(store, ended.rollout_id) == [4.0]


async def test_sixty_four_concurrent_runners_keep_their_ids_and_spans_apart(store: InMemoryLightningStore) -> None:
    class Agent(LitAgent[int]):
        async def rollout_async(self, task: int, rollout: AttemptedRollout) -> float:
            await asyncio.sleep(0.001)
            for turn in range(3):
                emit_message(f"{task}:{turn}:{self.runner.worker_id}:{rollout.attempt.worker_id}")
                await asyncio.sleep(0)
            return float(task)

    class Score(Hook):
        async def on_rollout_end(self, rollout: Rollout, spans: Sequence[Span]) -> float | None:
            await asyncio.sleep(0)
            return (find_final_reward(spans) or 0.0) + 0.5

    runner, event, agent = LitAgentRunner(poll_interval=60), ThreadingEvent(), Agent()  # new work wakes them
    count = 256

    async def one(index: int) -> None:
        with runner.run_context(agent=agent, store=store, hooks=[Score()], worker_id=index):
            await runner.iter(event=event)

    tasks = [asyncio.create_task(one(index)) for index in range(64)]
    await asyncio.sleep(0.01)
    queued = [await store.enqueue_rollout(number) for number in range(count)]
    ended = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id for rollout in queued], timeout=30)
    event.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert len(ended) == count
    workers = set()
    for number, done in enumerate(ended):
        assert done.status == "succeeded"
        attempt = await _latest(store, done.rollout_id)
        worker = attempt.worker_id
        workers.add(worker)
        spans = list(await store.query_spans(done.rollout_id))
        messages = [message for span in spans if (message := get_message_value(span))]
        assert messages == [f"{number}:{turn}:{worker}:{worker}" for turn in range(3)]
        assert await _rewards(store, done.rollout_id) == [float(number), number + 0.5]
    assert len(workers) > 32
    assert workers <= {f"runner-{index}" for index in range(64)}


async def test_sync_agents_of_many_runners_run_side_by_side(store: InMemoryLightningStore) -> None:
    together = threading.Barrier(16, timeout=10)

    @rollout
    def agent(task: int) -> float:
        return float(together.wait() >= 0)

    runner, event = LitAgentRunner(DummyTracer(), max_rollouts=1), ThreadingEvent()

    async def one(index: int) -> None:
        with runner.run_context(agent=agent, store=store, worker_id=index):
            await runner.iter(event=event)

    queued = [await store.enqueue_rollout(number) for number in range(16)]
    await asyncio.wait_for(asyncio.gather(*(one(index) for index in range(16))), 15)
    for rollout_ in queued:
        assert await _rewards(store, rollout_.rollout_id) == [1.0]


async def test_an_agent_that_raises_fails_its_attempt_and_the_runner_goes_on(
    store: InMemoryLightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    @rollout
    def agent(task: str) -> float:
        if task == "bad":
            raise LookupError("no such table")
        return 1.0

    bad, good = await store.enqueue_rollout("bad"), await store.enqueue_rollout("good")
    with caplog.at_level(logging.WARNING):
        await _run_queue(store, agent)
    assert (await store.get_rollout_by_id(bad.rollout_id)).status == "failed"
    assert (await store.get_rollout_by_id(good.rollout_id)).status == "succeeded"
    assert await _reason(store, bad.rollout_id) == "the agent: LookupError: no such table"
    assert "no such table" in caplog.text
    spans = await store.query_spans(bad.rollout_id, name=AGL_EXCEPTION)
    assert spans[0].attributes["exception.type"] == "LookupError"
    assert "no such table" in spans[0].attributes["agentlightning.failure.reason"]


@pytest.mark.parametrize("result", ["text", float("nan")])
async def test_a_result_that_is_no_reward_fails_the_attempt(store: InMemoryLightningStore, result: Any) -> None:
    @rollout
    def agent(task: str) -> Any:
        return result

    ended = await _failed_step(store, agent)
    assert ended.status == "failed"
    assert "the agent:" in await _reason(store, ended.rollout_id)
    assert await _rewards(store, ended.rollout_id) == []


async def test_an_async_agent_that_hangs_is_cancelled(store: InMemoryLightningStore) -> None:
    cancelled = []

    @rollout
    async def agent(task: str) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(task)
            raise

    queued = await store.enqueue_rollout("slow", config=RolloutConfig(timeout_seconds=0.1))
    # without heartbeats, by which a slow machine may learn first that the store has given the attempt up
    await _run_queue(store, agent, max_rollouts=1, heartbeat_interval=0)
    attempt = await _latest(store, queued.rollout_id)
    assert attempt.status == "timeout"
    assert "timeout_seconds=0.1" in attempt.metadata["error"]
    assert cancelled == ["slow"]


async def test_a_sync_agent_that_hangs_is_given_up_and_its_later_spans_are_dropped(
    store: InMemoryLightningStore,
) -> None:
    release, released = threading.Event(), threading.Event()

    @rollout
    def agent(task: str) -> float:
        if task == "slow":
            release.wait(20)
            emit_reward(1.0)
            released.set()
        return 1.0

    slow = await store.enqueue_rollout("slow", config=RolloutConfig(timeout_seconds=0.1))
    quick = await store.enqueue_rollout("quick")
    await _run_queue(store, agent)
    release.set()
    assert await asyncio.to_thread(released.wait, 5)
    await asyncio.sleep(0.01)
    attempt = await _latest(store, slow.rollout_id)
    assert attempt.status == "timeout"
    assert await _rewards(store, slow.rollout_id) == []
    assert await _rewards(store, quick.rollout_id) == [1.0]


async def test_an_agent_that_exits_the_process_only_fails_its_attempt(store: InMemoryLightningStore) -> None:
    @rollout
    async def leave(task: str) -> None:
        sys.exit(3)

    @rollout
    async def cancel(task: str) -> None:
        raise asyncio.CancelledError

    assert "SystemExit: 3" in await _reason(store, (await _failed_step(store, leave)).rollout_id)
    assert "cancelled itself" in await _reason(store, (await _failed_step(store, cancel)).rollout_id)


async def test_missing_resources_fail_the_attempt_with_a_reason(store: InMemoryLightningStore) -> None:
    @llm_rollout
    async def agent(task: str, llm: LLM) -> float:
        return 1.0

    empty = await _failed_step(store, agent, error=LookupError)
    assert empty.status == "failed"
    assert "initial_resources" in await _reason(store, empty.rollout_id)
    assert len(await store.query_spans(empty.rollout_id, name=AGL_EXCEPTION)) == 1
    unknown = await store.enqueue_rollout("x", resources_id="rs-unknown")
    await _run_queue(store, agent)
    assert "rs-unknown" in await _reason(store, unknown.rollout_id)


async def test_hooks_run_in_order_with_the_arguments_that_they_name(store: InMemoryLightningStore) -> None:
    calls: list[Any] = []

    class Short(Hook):
        async def on_rollout_start(self, rollout: Rollout) -> None:
            calls.append(("rollout start", rollout.input))

        def on_trace_start(self, *, tracer: Any) -> None:
            calls.append(("trace start", tracer is get_active_tracer()))

        async def on_trace_end(self, tracer: Any, agent: Any) -> None:
            calls.append(("trace end", [get_message_value(span) for span in tracer.get_last_trace()]))

        def on_rollout_end(self, rollout: Rollout, task: str) -> float:
            calls.append(("rollout end", rollout.input == task))
            return 0.5

    @rollout
    def agent(task: str) -> None:
        calls.append("agent")
        emit_message("from the agent")

    await store.enqueue_rollout("t")
    await _run_queue(store, agent, [Short()])
    assert calls == [
        ("rollout start", "t"),
        ("trace start", True),
        "agent",
        ("trace end", ["from the agent"]),
        ("rollout end", True),
    ]
    only = (await store.query_rollouts())[0]
    assert await _rewards(store, only.rollout_id) == [0.5]


async def test_on_rollout_end_sees_every_span_and_emits_into_the_attempt(store: InMemoryLightningStore) -> None:
    seen: list[list[float | None]] = []

    class Emits(Hook):
        async def on_rollout_end(self, *, spans: Sequence[Span], **_: Any) -> None:
            seen.append([get_reward_value(span) for span in find_reward_spans(spans)])
            emit_reward({"accuracy": 1.0, "format": 0.0}, primary_key="accuracy")

    class Looks(Hook):
        async def on_rollout_end(self, *, spans: Sequence[Span]) -> None:
            seen.append([get_reward_value(span) for span in find_reward_spans(spans)])

    ended = await _step(store, rollout(lambda task: 0.25), [Emits(), Looks()])
    assert seen == [[0.25], [0.25, 1.0]]
    assert await _rewards(store, ended.rollout_id) == [0.25, 1.0]


async def test_the_returned_reward_comes_after_what_on_trace_end_emits(store: InMemoryLightningStore) -> None:
    seen: list[list[float | None]] = []

    class Emits(Hook):
        async def on_trace_end(self, *, tracer: Any, **_: Any) -> None:
            emit_reward(0.8)
            seen.append([get_reward_value(span) for span in find_reward_spans(tracer.get_last_trace())])

    class Returns(Hook):
        async def on_trace_end(self) -> float:
            return 0.9

    @rollout
    def spans(task: str) -> list[Span]:
        return [Span.from_core_fields(emit_reward(0.3, propagate=False))]

    ended = await _step(store, rollout(lambda task: 0.5), [Emits()])
    assert await _rewards(store, ended.rollout_id) == [0.8, 0.5]
    assert seen == [[0.8]], "the agent's reward is not there yet"
    ended = await _step(store, rollout(lambda task: 0.5), [Returns(), Emits()])
    assert await _rewards(store, ended.rollout_id) == [0.8, 0.5, 0.9], "a hook that returns a reward decides"
    ended = await _step(store, spans, [Emits()])
    assert await _rewards(store, ended.rollout_id) == [0.8, 0.3]


@pytest.mark.parametrize("method", ["on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end"])
async def test_a_failing_hook_fails_the_attempt_with_its_name(store: InMemoryLightningStore, method: str) -> None:
    ended_hooks: list[str] = []

    async def fail(self: Hook) -> None:
        raise RuntimeError("broken hook")

    class Watch(Hook):
        async def on_rollout_end(self) -> None:
            ended_hooks.append("end")

    broken = type("Broken", (Hook,), {method: fail})()
    ended = await _failed_step(store, rollout(lambda task: 1.0), [broken, Watch()], RuntimeError)
    assert ended.status == "failed"
    assert await _reason(store, ended.rollout_id) == f"hook Broken.{method}: RuntimeError: broken hook"
    assert len(await store.query_spans(ended.rollout_id, name=AGL_EXCEPTION)) == 1
    assert ended_hooks == ["end"]


@pytest.mark.parametrize("how", ["the run stops", "the runner is cancelled"])
async def test_an_attempt_under_way_is_given_back(store: InMemoryLightningStore, how: str) -> None:
    started = asyncio.Event()

    @rollout
    async def agent(task: str) -> None:
        started.set()
        await asyncio.sleep(60)

    queued = await store.enqueue_rollout("x")
    runner, event = LitAgentRunner(DummyTracer()), ThreadingEvent()
    with runner.run_context(agent=agent, store=store):
        task = asyncio.create_task(runner.iter(event=event))
        await started.wait()
        if how == "the run stops":
            event.set()
            await asyncio.wait_for(task, 30)
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert (await store.get_rollout_by_id(queued.rollout_id)).status == "requeuing"
    reason = "the run was stopped" if how == "the run stops" else "the runner stopped: CancelledError: "
    assert await _reason(store, queued.rollout_id) == reason
    worker = await store.get_worker_by_id("runner-0")
    assert worker is not None
    assert (worker.status, worker.current_attempt_id) == ("idle", None)
    again = await store.dequeue_rollout()
    assert again is not None
    assert again.rollout_id == queued.rollout_id


@pytest.mark.parametrize("how", ["unresponsive", "cancelled", "superseded"])
async def test_an_attempt_that_no_longer_counts_is_broken_off_and_the_runner_goes_on(
    store: InMemoryLightningStore, how: str
) -> None:
    broken_off = asyncio.Event()
    started = asyncio.Event()

    @rollout
    async def agent(task: str, rollout: AttemptedRollout) -> float:
        if task == "hangs" and rollout.attempt.sequence_id == 1:
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                broken_off.set()
        return 1.0

    retried = RolloutConfig(unresponsive_seconds=0.1, max_attempts=2, retry_condition=["unresponsive"])
    hangs = await store.enqueue_rollout("hangs", config=retried if how == "unresponsive" else None)
    after = await store.enqueue_rollout("after")
    runner, event = LitAgentRunner(DummyTracer(), heartbeat_interval=0.05), ThreadingEvent()
    with runner.run_context(agent=agent, store=store):
        task = asyncio.create_task(runner.iter(event=event))
        await asyncio.wait_for(started.wait(), 30)
        if how == "cancelled":
            await store.update_rollout(hangs.rollout_id, status="cancelled")
        elif how == "superseded":
            other = await store.start_attempt(hangs.rollout_id, "elsewhere")
            await store.update_attempt(hangs.rollout_id, other.attempt.attempt_id, status="running")
        ids = [after.rollout_id] if how == "superseded" else [hangs.rollout_id, after.rollout_id]
        ended = await store.wait_for_rollouts(rollout_ids=ids, timeout=30)
        assert len(ended) == len(ids)
        event.set()
        await asyncio.wait_for(task, 30)
    assert broken_off.is_set()
    assert ended[-1].status == "succeeded"
    attempts = [attempt.status for attempt in await store.query_attempts(hangs.rollout_id)]
    expected = {
        "unresponsive": ("succeeded", ["unresponsive", "succeeded"]),
        "cancelled": ("cancelled", ["failed"]),
        "superseded": ("running", ["failed", "running"]),
    }
    assert ((await store.get_rollout_by_id(hangs.rollout_id)).status, attempts) == expected[how]


async def test_max_rollouts_ends_the_runner(store: InMemoryLightningStore) -> None:
    for number in range(3):
        await store.enqueue_rollout(number)
    runner = LitAgentRunner(DummyTracer(), max_rollouts=2)
    with runner.run_context(agent=rollout(lambda task: None), store=store):
        await asyncio.wait_for(runner.iter(), 30)
    assert [done.status for done in await store.query_rollouts()] == ["succeeded", "succeeded", "queuing"]


async def test_runners_of_one_store_send_their_heartbeats_together_while_they_work() -> None:
    class Hearing(InMemoryLightningStore):
        """Keeps the heartbeats that were sent together."""

        def __init__(self) -> None:
            super().__init__()
            self.heard: list[dict[str, dict[str, Any]]] = []

        async def update_many_workers(self, heartbeats: dict[str, dict[str, Any]]) -> None:
            self.heard.append(heartbeats)
            await super().update_many_workers(heartbeats)

    busy = asyncio.Event()

    @rollout
    async def agent(task: str) -> None:
        await busy.wait()

    store, event = Hearing(), ThreadingEvent()
    runner = LitAgentRunner(DummyTracer(), heartbeat_interval=0.05)

    async def run(number: int) -> None:
        with runner.run_context(agent=agent, store=store, worker_id=number):
            await runner.iter(event=event)

    await store.enqueue_rollout("x")
    tasks = [asyncio.create_task(run(number)) for number in range(20)]
    everybody = {f"runner-{number}" for number in range(20)}
    while [set(heartbeats) for heartbeats in store.heard].count(everybody) < 3:
        await asyncio.sleep(0.01)
    busy.set()
    event.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    working = [stats for stats in store.heard[-1].values() if stats["attempts"]]
    assert len(working) == 1
    assert working[0]["memory_mib"] > 1
    assert working[0]["cpu_percent"] >= 0
    heard = len(store.heard)
    await asyncio.sleep(0.2)
    assert len(store.heard) == heard, "a heartbeat without a runner"


async def test_a_runner_outside_its_context_and_a_hook_of_another_class_are_refused(
    store: InMemoryLightningStore,
) -> None:
    runner: LitAgentRunner[Any] = LitAgentRunner(DummyTracer())
    with pytest.raises(ValueError, match="run_context"):
        await runner.iter()
    with pytest.raises(TypeError, match="hooks"):
        runner.init(rollout(lambda task: None), hooks=[object()])  # type: ignore[list-item]  # refused


async def test_the_logging_hook_logs_start_end_reward_and_failure(
    store: InMemoryLightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    @rollout
    def agent(task: str) -> float:
        if task == "bad":
            raise LookupError("gone")
        return 0.5

    with caplog.at_level(logging.INFO):
        await store.enqueue_rollout("good", mode="train")
        await store.enqueue_rollout("bad")
        await _run_queue(store, agent, [LoggingHook()])
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("runner.hooks")]
    assert len(lines) == 4
    assert "attempt 1 (train) starts" in lines[0]
    assert "reward 0.5" in lines[1]
    assert "0 LLM calls" in lines[1]
    assert "reward none" in lines[3]
    assert "LookupError: gone" in lines[3]


@rollout
def half(task: str) -> float:
    return 0.5


async def test_a_runner_may_be_led_through_its_life_by_hand() -> None:
    store, runner = InMemoryLightningStore(), LitAgentRunner[str](DummyTracer())
    with pytest.raises(ValueError, match="init"):
        runner.init_worker(0, store)
    runner.init(half, hooks=[])
    runner.init_worker(2, store)
    assert (runner.get_agent(), runner.get_store(), runner.get_worker_id()) == (half, store, "runner-2")
    assert (await runner.step("x")).status == "succeeded"
    runner.teardown_worker(2)
    runner.teardown()
    with pytest.raises(ValueError, match="not bound"):
        runner.get_store()
    with pytest.raises(RuntimeError, match="step"):
        runner.run()


class _Counting(Runner[str]):
    """As the base of 0.3 asks for one."""

    life: list[Any]

    def __init__(self) -> None:
        self.life = []

    def init(self, agent: LitAgent[str], *, hooks: Sequence[Hook] | None = None, **kwargs: Any) -> None:
        self.agent = agent
        self.life.append("init")

    def init_worker(self, worker_id: int, store: LightningStore, **kwargs: Any) -> None:
        self.store = store
        self.life.append(worker_id)

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        self.life.append(-worker_id)

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("cannot clean up")

    async def step(self, input: str, **_: Any) -> Rollout:
        started = await self.store.start_rollout(input)
        await self.store.update_attempt(started.rollout_id, started.attempt.attempt_id, status="succeeded")
        return started

    async def iter(self, *, event: Any = None) -> None:
        claimed = await self.store.dequeue_rollout()
        assert claimed is not None
        await self.store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")


async def test_a_runner_of_ones_own_needs_no_context_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    store, runner = InMemoryLightningStore(), _Counting()
    queued = await store.enqueue_rollout("x")
    with runner.run_context(agent=half, store=store, worker_id=3):
        await runner.iter(event=ThreadingEvent())
        assert isinstance(await runner.step("y"), AttemptedRollout)
    assert runner.life == ["init", 3, -3]
    assert "cannot clean up" in caplog.text
    assert (await store.get_rollout_by_id(queued.rollout_id)).status == "succeeded"


async def test_what_a_runner_does_not_define_is_named() -> None:
    with pytest.raises(NotImplementedError, match="iter"):
        await Runner[str]().iter()
    with pytest.raises(NotImplementedError, match="step"):
        await Runner[str]().step("x")
    with pytest.raises(NotImplementedError, match="init"), Runner[str]().run_context(agent=half, store=None):
        pass
