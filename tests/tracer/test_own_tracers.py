"""Tracers that users write: subclasses that define no more than they need."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from mini_agentic_rl.emitter import emit_message, emit_reward, find_final_reward, get_message_value, operation
from mini_agentic_rl.litagent import LitAgent, rollout
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store.memory import InMemoryLightningStore
from mini_agentic_rl.tracer import (
    DummyTracer,
    OtelTracer,
    Tracer,
    clear_active_tracer,
    get_active_tracer,
    set_active_tracer,
)
from mini_agentic_rl.types import (
    Attributes,
    Hook,
    ParallelWorkerBase,
    Rollout,
    Span,
    SpanCoreFields,
    SpanRecordingContext,
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


class _SilentTracer(Tracer):
    """Makes its spans itself and stores none."""

    def __init__(self) -> None:
        self.made: list[str] = []

    @asynccontextmanager
    async def trace_context(self, name: str | None = None, **_: Any) -> AsyncIterator[None]:
        yield None

    def create_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        self.made.append(name)
        return SpanCoreFields(name=name, attributes=attributes or {})

    @contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Attributes | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Iterator[SpanRecordingContext]:
        yield _Recording(name, attributes or {})
        self.made.append(name)


class _Recording(SpanRecordingContext):
    def __init__(self, name: str, attributes: Attributes) -> None:
        self.core = SpanCoreFields(name=name, attributes=attributes)

    def record_attributes(self, attributes: Attributes) -> None:
        self.core.attributes.update(attributes)

    def get_recorded_span(self) -> SpanCoreFields:
        return self.core


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


async def test_the_reward_of_a_rollout_reaches_the_store_whatever_its_tracer_does_with_spans() -> None:
    tracer = _SilentTracer()

    @rollout
    def agent(task: str) -> float:
        with operation(name="step") as op:
            op.set_output(1)
        emit_message("kept by the tracer alone")
        return 0.25

    _, spans = await _run(tracer, agent)
    assert find_final_reward(spans) == 0.25
    assert tracer.made == ["agentlightning.operation", "agentlightning.message"]
    assert len(spans) == 1


@pytest.mark.parametrize("base", [OtelTracer, DummyTracer])
async def test_a_context_around_that_of_a_tracer_of_ours_keeps_its_spans(base: type[Tracer]) -> None:
    class Wraps(base):  # type: ignore[misc, valid-type]  # either tracer
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


@pytest.mark.parametrize("kind", [OtelTracer, DummyTracer, Tracer])
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


async def test_the_context_of_an_otel_tracer_makes_spans_as_opentelemetrys_tracer_does() -> None:
    tracer, store = OtelTracer(), InMemoryLightningStore()
    started = await store.start_rollout("x")
    ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    with tracer.lifespan(store):
        async with tracer.trace_context("manual", **ids) as otel_tracer:
            with otel_tracer.start_as_current_span("outer", attributes={"k": 1}):
                otel_tracer.start_span("inner").end()
    spans = {span.name: span for span in await store.query_spans(**ids)}
    assert spans["inner"].parent_id == spans["outer"].span_id
    assert spans["outer"].attributes == {"k": 1}


def test_tracers_and_hooks_have_the_life_of_a_worker() -> None:
    for made in (Tracer(), Hook()):
        assert isinstance(made, ParallelWorkerBase)
        made.init()
        made.init_worker(3)
        assert made.worker_id == 3
        made.run()
        made.teardown_worker(3)
        made.teardown()
