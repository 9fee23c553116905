"""Rollouts and spans in memory cost Python's collector of garbage nothing, and are objects like others all the same."""

from __future__ import annotations

import gc
import weakref

from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.store.untracked import hide_from_collector
from mini_agentic_rl.types import Event, OtelResource, RolloutConfig, Span

SPANS = 300


def _span(claimed, number: int) -> Span:
    return Span.from_attributes(
        attributes={"ids": list(range(500)), "nested": [{"a": [1, [2]]}], "text": "a"},
        rollout_id=claimed.rollout_id,
        attempt_id=claimed.attempt.attempt_id,
        sequence_id=number,
        events=[Event(name="e", attributes={"b": [1]}, timestamp=1.0)],
        resource=OtelResource(attributes={"c": [1]}, schema_url=""),
    )


async def test_the_collector_has_no_more_to_look_at_when_spans_are_kept():
    store = InMemoryLightningStore()
    claimed = await store.start_rollout("task")
    await store.add_many_spans([_span(claimed, 1)])
    gc.collect()
    before = len(gc.get_objects())
    await store.add_many_spans([_span(claimed, 2 + number) for number in range(SPANS)])
    gc.collect()
    assert len(gc.get_objects()) - before < SPANS


async def test_the_collector_has_no_more_to_look_at_when_rollouts_are_kept():
    store = InMemoryLightningStore()

    async def end_one(number: int) -> None:
        queued = await store.enqueue_rollout({"n": [number]}, metadata={"group": [number]}, config=RolloutConfig())
        claimed = await store.dequeue_rollout("w")
        assert claimed is not None
        await store.add_span(_span(claimed, 1))
        await store.update_attempt(queued.rollout_id, claimed.attempt.attempt_id, status="succeeded")

    await end_one(0)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(SPANS):
        await end_one(number)
    gc.collect()
    assert len(gc.get_objects()) - before < SPANS


async def test_a_kept_span_is_used_and_changed_as_ever():
    store = InMemoryLightningStore()
    claimed = await store.start_rollout("task")
    kept = _span(claimed, 1)
    whole = kept.model_dump()
    await store.add_span(kept)
    assert (await store.query_spans(claimed.rollout_id))[0].model_dump() == whole
    kept.attributes["more"] = [kept.attributes]
    kept.events.append(Event(name="f", attributes={}, timestamp=2.0))
    gc.collect()
    assert kept.attributes["more"][0] is kept.attributes
    assert [event.name for event in kept.events] == ["e", "f"]


def test_what_was_hidden_ends_with_the_last_that_refers_to_it():
    class Value:
        pass

    value = Value()
    ended = weakref.ref(value)
    tree = {"a": [value, {"b": (value,)}], "long": [value] * 500}
    hide_from_collector(tree)
    gc.collect()
    assert ended() is value
    del value, tree
    assert ended() is None
