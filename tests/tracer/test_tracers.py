"""Tracers on a real store: spans reach the right attempt, in order; and tracers that users write."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry import trace as otel

from mini_agentic_rl.emitter import emit_message, emit_reward, find_final_reward, get_message_value
from mini_agentic_rl.litagent import LitAgent, rollout
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store.base import LightningStore
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
    Hook,
    Rollout,
    Span,
    TraceStatus,
)


@pytest.fixture(params=[OtelTracer, DummyTracer])
def tracer(request: pytest.FixtureRequest) -> Tracer:
    return request.param()


async def _attempt(store: LightningStore) -> dict[str, str]:
    started = await store.start_rollout("task")
    return {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}


async def _messages(store: LightningStore, rollout_id: str) -> list[str | None]:
    spans = await store.query_spans(rollout_id)
    return [message for span in spans if (message := get_message_value(span)) is not None]


async def test_spans_are_in_the_store_with_its_sequence_ids_when_the_trace_ends(tracer: Tracer) -> None:
    store = InMemoryLightningStore()
    ids = await _attempt(store)
    assert await store.get_next_span_sequence_id(**ids) == 1
    async with tracer.trace_context("run", store=store, **ids):
        for text in ("a", "b", "c"):
            emit_message(text)
    spans = await store.query_spans(**ids)
    assert await _messages(store, ids["rollout_id"]) == ["a", "b", "c"]
    numbers = [span.sequence_id for span in spans]
    assert numbers == sorted(set(numbers))
    assert min(numbers) == 2
    assert len({span.trace_id for span in spans}) == 1


async def test_many_traces_in_one_loop_never_mix(tracer: Tracer) -> None:
    store = InMemoryLightningStore()

    async def one(number: int) -> None:
        ids = await _attempt(store)
        async with tracer.trace_context(store=store, **ids):
            for turn in range(5):
                emit_message(f"{number}:{turn}")
                await asyncio.sleep(0)
        assert await _messages(store, ids["rollout_id"]) == [f"{number}:{turn}" for turn in range(5)]
        assert len(tracer.get_last_trace()) == (6 if isinstance(tracer, OtelTracer) else 5)

    await asyncio.gather(*(one(number) for number in range(16)))


async def test_threads_that_carry_the_context_emit_into_their_trace(tracer: Tracer) -> None:
    store = InMemoryLightningStore()
    ids = await _attempt(store)
    async with tracer.trace_context(store=store, **ids):
        await asyncio.gather(*(asyncio.to_thread(emit_message, f"{number}") for number in range(8)))
    assert sorted(map(str, await _messages(store, ids["rollout_id"]))) == [str(number) for number in range(8)]


async def test_a_bare_thread_is_told_that_it_has_no_tracer(tracer: Tracer) -> None:
    errors: list[BaseException] = []

    def emit() -> None:
        try:
            emit_message("lost")
        except RuntimeError as error:
            errors.append(error)

    async with tracer.trace_context():
        thread = threading.Thread(target=contextvars.Context().run, args=(emit,))
        thread.start()
        thread.join()
    assert "copy_context" in str(errors[0])


async def test_spans_after_the_end_are_dropped_and_logged(tracer: Tracer, caplog: pytest.LogCaptureFixture) -> None:
    store = InMemoryLightningStore()
    ids = await _attempt(store)
    async with tracer.trace_context(store=store, **ids):
        late = contextvars.copy_context()
        emit_message("in time")
    with caplog.at_level(logging.WARNING):
        late.run(emit_message, "late")
    await asyncio.sleep(0)
    assert await _messages(store, ids["rollout_id"]) == ["in time"]
    assert "is dropped" in caplog.text


async def test_a_trace_can_be_continued_after_its_end(tracer: Tracer) -> None:
    store = InMemoryLightningStore()
    ids = await _attempt(store)
    async with tracer.trace_context(store=store, **ids):
        emit_message("first")
    async with tracer.continue_trace():
        emit_message("second")
    spans = await store.query_spans(**ids)
    assert await _messages(store, ids["rollout_id"]) == ["first", "second"]
    assert len({span.trace_id for span in spans}) == 1
    assert [get_message_value(span) for span in tracer.get_last_trace() if get_message_value(span)] == [
        "first",
        "second",
    ]


async def test_operations_are_parents_and_keep_their_exception(tracer: Tracer) -> None:
    def work() -> None:
        with tracer.operation_context("outer", {"k": 1}) as open_span:
            open_span.record_attributes({"more": "x"})
            emit_message("inside")
            raise KeyError("gone")

    async with tracer.trace_context():
        with pytest.raises(KeyError):
            work()
    spans = {span.name: span for span in tracer.get_last_trace()}
    assert spans["agentlightning.message"].parent_id == spans["outer"].span_id
    assert spans["outer"].attributes.items() >= {"k": 1, "more": "x"}.items()
    assert spans["outer"].status.status_code == "ERROR"
    assert spans["outer"].events[0].attributes["exception.type"] == "KeyError"


async def test_what_the_store_refuses_is_raised_at_the_end_of_the_trace(tracer: Tracer) -> None:
    unknown = {"store": InMemoryLightningStore(), "rollout_id": "nobody", "attempt_id": "none"}
    with pytest.raises(ValueError, match="nobody"):
        async with tracer.trace_context(**unknown):
            emit_message("x")

    async def fail() -> None:
        async with tracer.trace_context(**unknown):
            emit_message("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # the exception of the block comes first
        await fail()
    with pytest.raises(ValueError, match="attempt_id"):
        async with tracer.trace_context(store=InMemoryLightningStore(), rollout_id="r"):
            pass


async def test_lifespan_gives_traces_a_store_and_an_active_tracer(tracer: Tracer) -> None:
    store = InMemoryLightningStore()
    ids = await _attempt(store)
    with tracer.lifespan(store):
        assert get_active_tracer() is tracer
        set_active_tracer(tracer)
        with pytest.raises(ValueError, match="clear_active_tracer"):
            set_active_tracer(DummyTracer())
        async with tracer.trace_context(**ids):
            emit_message("kept")
    assert get_active_tracer() is None
    assert await _messages(store, ids["rollout_id"]) == ["kept"]


async def test_trace_run_keeps_spans_without_a_store(tracer: Tracer) -> None:
    async def work(text: str) -> str:
        return emit_message(text).name

    assert tracer.trace_run(lambda: emit_message("hello").name) == "agentlightning.message"
    assert "hello" in [get_message_value(span) for span in tracer.get_last_trace()]
    assert await tracer.trace_run_async(work, "again") == "agentlightning.message"
    assert "again" in [get_message_value(span) for span in tracer.get_last_trace()]


async def test_an_instrumentation_library_given_the_provider_reaches_the_store() -> None:
    before = otel.get_tracer_provider()
    store, tracer = InMemoryLightningStore(), OtelTracer()
    assert tracer.provider is not before
    assert otel.get_tracer_provider() is before
    ids = await _attempt(store)
    library = tracer.provider.get_tracer("some.library")
    async with tracer.trace_context("run", store=store, **ids):
        with library.start_as_current_span("library call"):
            emit_message("inside")
    spans = {span.name: span for span in await store.query_spans(**ids)}
    assert spans["library call"].parent_id == spans["run"].span_id
    assert spans["agentlightning.message"].parent_id == spans["library call"].span_id


async def test_two_otel_tracers_in_one_task_keep_their_spans_apart() -> None:
    outer, inner = OtelTracer(), OtelTracer()
    async with outer.trace_context("outer"):
        emit_message("before")
        async with inner.trace_context("inner"):
            emit_message("within")
        emit_message("after")
    kept = [get_message_value(span) for span in outer.get_last_trace()]
    assert [text for text in kept if text] == ["before", "after"]


def test_a_disabled_sdk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with pytest.raises(RuntimeError, match="OTEL_SDK_DISABLED"):
        OtelTracer()


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
