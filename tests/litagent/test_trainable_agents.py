"""Marking an agent as trainable, from wherever the agent runs."""

from __future__ import annotations

import logging

import pytest

from mini_agentic_rl.emitter import find_trainable_agents
from mini_agentic_rl.litagent import LitAgent
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tracer import DummyTracer, OtelTracer, Tracer
from mini_agentic_rl.types import AttemptedRollout, Rollout


class Marks(LitAgent):
    """Marks one of its agents, without having imported an emitter."""

    def rollout(self, task: str, rollout: AttemptedRollout) -> None:
        rollout.mark_agent_as_trainable("assistant")


def _rollout() -> Rollout:
    return Rollout(rollout_id="ro-1", input="task", start_time=0.0)


@pytest.mark.parametrize("tracer", [OtelTracer(), DummyTracer()])
async def test_a_mark_is_on_the_rollout_and_in_the_trace(tracer: Tracer) -> None:
    rollout = _rollout()
    async with tracer.trace_context():
        rollout.mark_agent_as_trainable("assistant")
        rollout.mark_agent_as_trainable("planner")
        rollout.mark_agent_as_trainable("assistant")
    assert rollout.metadata["trainable_agents"] == ["assistant", "planner"]
    assert find_trainable_agents(tracer.get_last_trace()) == ["assistant", "planner"]


def test_a_mark_outside_of_a_rollout_says_who_knows_of_it(caplog: pytest.LogCaptureFixture) -> None:
    rollout = _rollout()
    with caplog.at_level(logging.WARNING):
        rollout.mark_agent_as_trainable("assistant")
    assert rollout.metadata["trainable_agents"] == ["assistant"]
    assert "is marked outside of its rollout" in caplog.text
    with pytest.raises(ValueError, match="name of an agent"):
        rollout.mark_agent_as_trainable("")


async def test_a_mark_reaches_the_store() -> None:
    store = InMemoryLightningStore()
    await store.enqueue_rollout("task")
    runner = LitAgentRunner(DummyTracer(), max_rollouts=1)
    with runner.run_context(agent=Marks(), store=store, worker_id=0):
        await runner.iter()
    (ended,) = await store.query_rollouts()
    assert ended.status == "succeeded"
    assert find_trainable_agents(await store.query_spans(ended.rollout_id, "latest")) == ["assistant"]
