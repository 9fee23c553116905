"""Runners whose life is led by hand, and runners that users write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mini_agentic_rl.emitter import emit_message, emit_reward, find_reward_spans, get_reward_value
from mini_agentic_rl.execution import ThreadingEvent
from mini_agentic_rl.litagent import LitAgent, rollout
from mini_agentic_rl.runner import LitAgentRunner, Runner
from mini_agentic_rl.store import LightningStore
from mini_agentic_rl.store.memory import InMemoryLightningStore
from mini_agentic_rl.tracer import DummyTracer
from mini_agentic_rl.types import AttemptedRollout, Hook, Rollout, SpanCoreFields


@rollout
def half(task: str) -> float:
    return 0.5


async def test_a_runner_may_be_led_through_its_life_by_hand() -> None:
    store, runner = InMemoryLightningStore(), LitAgentRunner[str](DummyTracer(), max_rollouts=1)
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


async def test_spans_that_were_not_propagated_join_the_trace_when_they_are_returned() -> None:
    @rollout
    def agent(task: str) -> list[SpanCoreFields]:
        return [emit_message("said", propagate=False), emit_reward(0.75, propagate=False)]

    store = InMemoryLightningStore()
    runner = LitAgentRunner[str](DummyTracer())
    with runner.run_context(agent=agent, store=store):
        ended = await runner.step("x")
    spans = list(await store.query_spans(ended.rollout_id))
    assert ended.status == "succeeded"
    assert [span.name for span in spans] == ["agentlightning.message", "agentlightning.annotation"]
    assert [get_reward_value(span) for span in find_reward_spans(spans)] == [0.75]
