"""What every store does with rollouts, attempts and spans."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    LightningStoreThreaded,
)
from mini_agentic_rl.types import (
    LLM,
    AttemptedRollout,
    AttemptStatus,
    PromptTemplate,
    ProxyLLM,
    RolloutConfig,
    RolloutStatus,
    Span,
)

_span_ids = itertools.count(1)


def span_of(claimed: AttemptedRollout, sequence_id: int = 1, **fields: Any) -> Span:
    fields = {"span_id": f"{next(_span_ids):016x}", "trace_id": "ab" * 16, "name": "call"} | fields
    return Span(rollout_id=claimed.rollout_id, attempt_id=claimed.attempt.attempt_id, sequence_id=sequence_id, **fields)


async def status_of(store: LightningStore, rollout_id: str) -> tuple[RolloutStatus, AttemptStatus | None]:
    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    latest = await store.get_latest_attempt(rollout_id)
    return rollout.status, None if latest is None else latest.status


async def check_reopened(store: LightningStore, again: Callable[[], LightningStore]) -> None:
    """Write something of each kind, close the store, and compare what another one reads from the same place."""
    config = RolloutConfig(max_attempts=3, retry_condition=["timeout", "unresponsive"], timeout_seconds=60.5)
    resources = await store.add_resources(
        {
            "llm": LLM(endpoint="http://x/v1", model="m", sampling_parameters={"temperature": 0.5}),
            "p": PromptTemplate(template="{q}"),
        }
    )
    queued = await store.enqueue_rollout({"question": "¿?", "n": [1, None, 2.5, 2**70]}, mode="test", config=config)
    claimed = await store.start_rollout("other", worker_id="w")
    span = await store.add_span(span_of(claimed, attributes={"a.b": 1, "$c": float("inf")}))
    worker = await store.update_worker("w", {"gpu": None})
    await store.close()

    reopened = again()
    assert await reopened.get_rollout_by_id(queued.rollout_id) == queued
    assert await reopened.get_latest_resources() == resources
    assert list(await reopened.query_spans(claimed.rollout_id)) == [span]
    assert await reopened.get_worker_by_id("w") == worker
    head = await reopened.dequeue_rollout()
    assert head is not None
    assert head.rollout_id == queued.rollout_id
    assert await reopened.get_next_span_sequence_id(claimed.rollout_id, claimed.attempt.attempt_id) == 2
    await reopened.close()


async def test_a_store_that_is_not_async_safe_gets_one_call_after_the_other() -> None:
    class Delicate(InMemoryLightningStore):
        inside = most = 0

        @property
        def capabilities(self) -> LightningStoreCapabilities:
            return {**super().capabilities, "async_safe": False, "thread_safe": False}

        async def statistics(self) -> LightningStoreStatistics:
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0.01)
            self.inside -= 1
            return await super().statistics()

    delicate = Delicate()
    threaded = LightningStoreThreaded(delicate)
    waiting = asyncio.ensure_future(threaded.wait_for_work(10))
    await asyncio.gather(*(threaded.statistics() for _ in range(4)))
    await threaded.enqueue_rollout("ends the waiting")
    assert await waiting
    assert delicate.most == 1
    await threaded.close()


async def test_a_span_comes_back_as_it_was_stored(store: LightningStore) -> None:
    claimed = await store.start_rollout("a")
    span = span_of(
        claimed,
        attributes={
            "response_token_ids": [1, 2, 151645],
            "response_logprobs": [-0.1, -1.0000000000000002, float("-inf")],
            "text": 'quote " newline \n emoji 🙂 broken \ud83d',
            "flag": True,
        },
        events=[{"name": "exception", "attributes": {"exception.type": "ValueError"}, "timestamp": 1.5}],
        status={"status_code": "ERROR", "description": "no"},
        parent_id="00" * 8,
        start_time=1.25,
        end_time=2.5,
        extra_field="kept",
    )
    await store.add_span(span)
    assert list(await store.query_spans(claimed.rollout_id, "latest")) == [span]


async def test_values_come_back_as_they_were_sent(store: LightningStore) -> None:
    task = {
        "text": 'ä漢\U0001f600\x00\u2028"\\',
        "numbers": [0, -1, 2**70, 1.5, 1e-300, math.inf, -math.inf],
        "nothing": None,
        "truth": [True, False],
        "deep": {"a": [{"b": {}}], "": []},
    }
    limits = RolloutConfig(timeout_seconds=1.5, max_attempts=3, retry_condition=["failed", "timeout"])
    for value in (task, [task], "text", 1.0, None, True):
        queued = await store.enqueue_rollout(value, metadata={"task": value}, config=limits)
        back = await store.get_rollout_by_id(queued.rollout_id)
        assert back is not None
        assert back == queued
        assert (repr(back.input), back.metadata, back.config) == (repr(value), {"task": value}, limits)
    not_a_number = await store.enqueue_rollout([math.nan])
    back = await store.get_rollout_by_id(not_a_number.rollout_id)
    assert back is not None
    assert math.isnan(back.input[0])
    parameters = {"logit_bias": {"5": float("-inf")}, "max_tokens": 8, "stop": ["broken \ud83d"]}
    resources = {
        "llm": LLM(endpoint="http://x/v1", model="m", sampling_parameters=parameters),
        "proxy": ProxyLLM(endpoint="http://y/v1", model="m", api_key="k"),
        "prompt": PromptTemplate(template="{a} broken \ud83d", engine="jinja"),
    }
    added = await store.add_resources(resources)
    assert added.resources == resources
    assert type(added.resources["proxy"]) is ProxyLLM
    assert await store.get_latest_resources() == added


async def test_an_opentelemetry_span_gets_the_next_sequence_id(store: LightningStore) -> None:
    claimed = await store.start_rollout("a")
    with TracerProvider().get_tracer("test").start_as_current_span("work") as otel_span:
        otel_span.set_attribute("k", [1, 2])
    stored = await store.add_otel_span(claimed.rollout_id, claimed.attempt.attempt_id, otel_span)
    assert stored is not None
    assert (stored.name, stored.sequence_id, stored.attributes["k"]) == ("work", 1, [1, 2])
    assert await store.add_otel_span(claimed.rollout_id, claimed.attempt.attempt_id, otel_span, 5) is None


async def test_the_status_of_an_ended_rollout_is_final(store: LightningStore) -> None:
    claimed = await store.start_rollout("a")
    ended = await store.update_rollout(claimed.rollout_id, status="cancelled")
    assert ended.status == "cancelled"
    await store.add_span(span_of(claimed))
    await store.update_attempt(claimed.rollout_id, "latest", status="failed")
    again = await store.update_rollout(claimed.rollout_id, status="queuing", metadata={"note": 1})
    assert (again.status, again.end_time, again.metadata) == ("cancelled", ended.end_time, {"note": 1})
    assert await store.dequeue_rollout() is None
    with pytest.raises(ValueError, match="has ended"):
        await store.start_attempt(claimed.rollout_id)


async def test_unknown_ids_are_an_error_when_something_should_change(store: LightningStore) -> None:
    claimed = await store.start_rollout("a")
    stranger = span_of(claimed).model_copy(update={"attempt_id": "at-none"})
    calls = [
        store.start_attempt("ro-none"),
        store.update_rollout("ro-none", status="failed"),
        store.update_attempt("ro-none", "latest", status="failed"),
        store.update_attempt(claimed.rollout_id, "at-none", status="failed"),
        store.add_span(stranger),
        store.add_span(stranger.model_copy(update={"rollout_id": "ro-none"})),
        store.add_span(stranger.model_copy(update={"attempt_id": "latest"})),
        store.get_next_span_sequence_id(claimed.rollout_id, "at-none"),
        store.get_next_span_sequence_id("ro-none", "at-none"),
        store.wait_for_rollouts(rollout_ids=["ro-none"], timeout=0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"-none|latest"):
            await call
    assert await store.get_rollout_by_id("ro-none") is None
    assert await store.get_latest_attempt("ro-none") is None
    assert list(await store.query_attempts("ro-none")) == []
    assert list(await store.query_spans("ro-none", "latest")) == []
    with pytest.raises(ValueError, match="at-none"):  # none of a batch is stored
        await store.add_many_spans([span_of(claimed), stranger])
    assert list(await store.query_spans(claimed.rollout_id)) == []


async def test_a_deleted_rollout_leaves_nothing_and_its_neighbours_stay(store: LightningStore) -> None:
    kept = await store.start_rollout("kept")
    gone = await store.start_rollout("gone", worker_id="w", config=RolloutConfig(timeout_seconds=0.05))
    queued = await store.enqueue_rollout("queued")
    for rollout in (kept, gone):
        await store.add_span(span_of(rollout))
    assert list(await store.delete_rollouts([gone.rollout_id, queued.rollout_id, "never"])) == [
        gone.rollout_id,
        queued.rollout_id,
    ]
    await asyncio.sleep(0.1)  # nobody misses it at its limit
    assert await store.get_rollout_by_id(gone.rollout_id) is None
    assert not (await store.query_spans(gone.rollout_id)).items
    assert not (await store.query_attempts(gone.rollout_id)).items
    assert await store.dequeue_rollout() is None
    with pytest.raises(ValueError, match=gone.rollout_id):
        await store.add_span(span_of(gone))
    assert list(await store.delete_rollouts([gone.rollout_id])) == []
    assert [rollout.input for rollout in await store.query_rollouts()] == ["kept"]
    assert len(await store.query_spans(kept.rollout_id)) == 1
    statistics = await store.statistics()
    assert (statistics["total_rollouts"], statistics["total_attempts"], statistics["total_spans"]) == (1, 1, 1)
    later = await store.enqueue_rollout("later")
    assert [rollout.input for rollout in await store.query_rollouts(limit=1, offset=1)] == ["later"]
    assert (await store.query_rollouts(limit=1)).total == 2
    assert later.rollout_id not in (gone.rollout_id, kept.rollout_id)


async def test_a_rollout_may_have_an_id_of_its_makers_own(store: LightningStore) -> None:
    made = await store.start_rollout("task", rollout_id="se-1")
    assert made.rollout_id == made.attempt.rollout_id == "se-1"
    with pytest.raises(ValueError, match="se-1"):
        await store.start_rollout("again", rollout_id="se-1")
    await store.add_span(span_of(made))
    await store.delete_rollouts(["se-1"])
    assert (await store.start_rollout("anew", rollout_id="se-1")).input == "anew"
    assert not (await store.query_spans("se-1")).items


async def test_filters_have_older_names_and_no_wildcards_and_must_make_sense(store: LightningStore) -> None:
    queued = await store.enqueue_rollout(1)
    failed = await store.start_rollout(2)
    await store.update_attempt(failed.rollout_id, "latest", status="failed")
    by_status = await store.query_rollouts(status=["failed"])
    by_id = await store.query_rollouts(rollout_ids=[queued.rollout_id, "ro-none"])
    assert [rollout.input for rollout in [*by_status, *by_id]] == [2, 1]
    for text in (failed.rollout_id.upper(), "%"):
        assert list(await store.query_rollouts(rollout_id_contains=text)) == []
    wrong: dict[str, Any] = {"sort_by": "nope", "sort_order": "up", "limit": -2, "offset": -1, "filter_logic": "xor"}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name):
            await store.query_rollouts(**{name: value})
