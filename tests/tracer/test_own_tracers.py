"""Tracers that users write: subclasses that define no more than they need."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mini_agentic_rl.emitter import emit_message, emit_reward, find_final_reward, get_message_value
from mini_agentic_rl.litagent import LitAgent, rollout
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store.memory import InMemoryLightningStore
from mini_agentic_rl.tracer import (
    OtelTracer,
    Tracer,
    clear_active_tracer,
    get_active_tracer,
    set_active_tracer,
)
from mini_agentic_rl.types import (
    Hook,
    Rollout,
    Span,
    TraceStatus,
)


async def _run(tracer: Tracer, agent: LitAgent[Any], *hooks: Hook) -> tuple[Rollout, list[Span]]:
    store = InMemoryLightningStore()
    runner = LitAgentRunner[str](tracer)
    with runner.run_context(agent=agent, store=store, hooks=hooks):
        ended = await runner.step("task")
    return ended, list(await store.query_spans(ended.rollout_id))


class _InstrumentedTracer(Tracer):
    """As the tutorials describe one: it writes spans to the store that `init_worker` gave it."""

    def __init__(self) -> None:
        self.life: list[Any] = []
        self.spans: list[Span] = []

    def init(self, *args: Any, **kwargs: Any) -> None:
        self.life.append("init")

    def init_worker(self, worker_id: int, store: Any = None) -> None:
        super().init_worker(worker_id, store)
        self.life.append(("init_worker", worker_id))

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        self.life.append(("teardown_worker", worker_id))

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        self.life.append("teardown")

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: Any = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncIterator[Any]:
        self.life.append(("trace", name == rollout_id, store))
        self.spans = []
        yield "a processor"
        assert self._store is not None
        number = await self._store.get_next_span_sequence_id(rollout_id, attempt_id)
        span = Span.from_attributes(
            name="instrumented", attributes={}, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=number
        )
        await self._store.add_span(span)
        self.spans.append(span)

    def get_last_trace(self) -> list[Span]:
        return self.spans


async def test_a_tracer_with_a_context_of_its_own_runs_rollouts() -> None:
    tracer, seen = _InstrumentedTracer(), []

    class Looks(Hook):
        async def on_rollout_end(self, *, spans: Sequence[Span]) -> None:
            seen.extend(span.name for span in spans)

    @rollout
    def agent(task: str) -> float:
        assert get_active_tracer() is tracer
        emit_message("emitted")
        return 0.5

    ended, spans = await _run(tracer, agent, Looks())
    assert ended.status == "succeeded"
    assert find_final_reward(spans) == 0.5
    assert {get_message_value(span) for span in spans} == {None, "emitted"}
    assert [span.name for span in spans].count("instrumented") == 1
    assert sorted(seen) == sorted(span.name for span in spans)
    assert tracer.life == [
        "init",
        ("init_worker", 0),
        ("trace", True, None),
        ("teardown_worker", 0),
        "teardown",
    ]


async def test_a_context_around_that_of_a_tracer_of_ours_keeps_its_spans() -> None:
    class Wraps(OtelTracer):
        @asynccontextmanager
        async def trace_context(self, *args: Any, **kwargs: Any) -> AsyncIterator[None]:
            async with super().trace_context(*args, **kwargs):
                yield

    @rollout
    def agent(task: str) -> float:
        emit_message("inside")
        return 1.0

    _, spans = await _run(Wraps(), agent)
    assert [get_message_value(span) for span in spans].count("inside") == 1
    assert find_final_reward(spans) == 1.0


@pytest.mark.parametrize("kind", [OtelTracer, Tracer])
def test_a_span_outside_of_every_trace_is_made_and_logged(kind: type[Tracer], caplog: pytest.LogCaptureFixture) -> None:
    tracer = kind()
    with caplog.at_level(logging.WARNING):
        span = tracer.create_span("mine", {"a": 1}, status=TraceStatus(status_code="OK"))
        with tracer.operation_context("work") as open_span:
            open_span.record_attributes({"b": 2})
    assert (span.name, span.attributes, span.status.status_code) == ("mine", {"a": 1}, "OK")
    assert open_span.get_recorded_span().attributes == {"b": 2}
    assert "'mine' is recorded nowhere" in caplog.text
    set_active_tracer(tracer)
    try:
        assert emit_reward(1.0).name == "agentlightning.annotation"
    finally:
        clear_active_tracer()
