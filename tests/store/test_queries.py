"""Filters, order and pages mean the same in every store."""

from __future__ import annotations

from typing import Any

import pytest

from mini_agentic_rl.store import LightningStore
from mini_agentic_rl.types import PromptTemplate, Rollout, Span


async def fill(store: LightningStore) -> list[Rollout]:
    """Rollouts with these statuses: queuing, queuing, preparing, failed, succeeded."""
    rollouts: list[Rollout] = [await store.enqueue_rollout(n, mode="train" if n else None) for n in range(2)]
    rollouts += [await store.start_rollout(n, mode="val") for n in range(2, 5)]
    await store.update_attempt(rollouts[3].rollout_id, "latest", status="failed")
    await store.update_attempt(rollouts[4].rollout_id, "latest", status="succeeded")
    return rollouts


async def numbers(store: LightningStore, **query: Any) -> list[int]:
    return [rollout.input for rollout in await store.query_rollouts(**query)]


async def test_rollouts_come_in_the_order_of_creation(store: LightningStore) -> None:
    rollouts = await fill(store)
    assert await numbers(store) == [0, 1, 2, 3, 4]
    assert await numbers(store, sort_order="desc") == [4, 3, 2, 1, 0]
    assert await numbers(store, rollout_id_in=[rollouts[4].rollout_id, rollouts[1].rollout_id]) == [1, 4]


async def test_rollouts_are_filtered_by_status_and_id(store: LightningStore) -> None:
    rollouts = await fill(store)
    assert await numbers(store, status_in=["succeeded", "queuing"]) == [0, 1, 4]
    assert await numbers(store, status=["failed"]) == [3]
    assert await numbers(store, rollout_ids=[rollouts[2].rollout_id, "ro-none"]) == [2]
    assert await numbers(store, status_in=[]) == []
    assert await numbers(store, rollout_id_contains=rollouts[3].rollout_id[4:]) == [3]
    assert await numbers(store, rollout_id_contains=rollouts[3].rollout_id.upper()) == []
    assert await numbers(store, rollout_id_contains="%") == []


async def test_filter_logic_joins_the_filters(store: LightningStore) -> None:
    rollouts = await fill(store)
    filters: dict[str, Any] = {
        "status_in": ["queuing"],
        "rollout_id_in": [rollouts[0].rollout_id, rollouts[3].rollout_id],
    }
    assert await numbers(store, **filters) == [0]
    assert await numbers(store, **filters, filter_logic="or") == [0, 1, 3]


async def test_a_rollout_with_an_attempt_comes_with_it(store: LightningStore) -> None:
    await fill(store)
    for rollout in await store.query_rollouts():
        latest = await store.get_latest_attempt(rollout.rollout_id)
        assert getattr(rollout, "attempt", None) == latest


async def test_a_page_says_how_many_there_are_in_all(store: LightningStore) -> None:
    await fill(store)
    page = await store.query_rollouts(limit=2, offset=1)
    assert ([rollout.input for rollout in page], page.limit, page.offset, page.total) == ([1, 2], 2, 1, 5)
    assert [rollout.input for rollout in await store.query_rollouts(offset=3)] == [3, 4]
    assert (await store.query_rollouts(limit=0)).total == 5
    assert len(await store.query_rollouts(limit=0)) == 0
    assert len(await store.query_rollouts(limit=5, offset=9)) == 0


async def test_sorting_puts_none_first_and_keeps_ties_in_stored_order(store: LightningStore) -> None:
    await fill(store)
    assert await numbers(store, sort_by="mode") == [0, 1, 2, 3, 4]
    assert await numbers(store, sort_by="mode", sort_order="desc") == [2, 3, 4, 1, 0]
    assert await numbers(store, sort_by="status") == [3, 2, 0, 1, 4]


@pytest.mark.parametrize(
    "query", [{"sort_by": "nope"}, {"sort_order": "up"}, {"limit": -2}, {"offset": -1}, {"filter_logic": "xor"}]
)
async def test_a_query_that_makes_no_sense_is_refused(store: LightningStore, query: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(query))):
        await store.query_rollouts(**query)


async def test_spans_are_ordered_and_filtered(store: LightningStore) -> None:
    first = await store.start_rollout("a")
    second = await store.start_attempt(first.rollout_id)

    def span(attempt_id: str, sequence_id: int, name: str, parent: str | None = None) -> Span:
        return Span(
            rollout_id=first.rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            trace_id="ab" * 16,
            span_id=f"{name}-{sequence_id}",
            parent_id=parent,
            name=name,
        )

    old, new = first.attempt.attempt_id, second.attempt.attempt_id
    await store.add_many_spans([span(old, 3, "tool.call"), span(old, 1, "llm", "root"), span(new, 2, "llm")])

    async def ids(attempt_id: str | None = None, **query: Any) -> list[str]:
        return [found.span_id for found in await store.query_spans(first.rollout_id, attempt_id, **query)]

    assert await ids() == ["llm-1", "llm-2", "tool.call-3"]
    assert await ids(sort_by=None) == ["tool.call-3", "llm-1", "llm-2"]
    assert await ids(old) == ["llm-1", "tool.call-3"]
    assert await ids("latest") == ["llm-2"]
    assert await ids(name="llm") == ["llm-1", "llm-2"]
    assert await ids(old, name="llm") == ["llm-1"]
    assert await ids(name_contains="l.c") == ["tool.call-3"]
    assert await ids(parent_id="root", span_id="llm-2", filter_logic="or") == ["llm-1", "llm-2"]
    assert await ids(old, parent_id="root", span_id="llm-2", filter_logic="or") == ["llm-1"]
    assert await ids(parent_id_contains="oo") == ["llm-1"]
    assert await ids(trace_id="ab" * 16, sort_order="desc", limit=2) == ["tool.call-3", "llm-2"]
    assert await ids("at-none") == []


async def test_resources_and_attempts_are_paged(store: LightningStore) -> None:
    for text in "abc":
        await store.update_resources(f"rs-{text}", {"p": PromptTemplate(template=text)})
    assert [update.resources_id for update in await store.query_resources(limit=1, offset=1)] == ["rs-b"]
    assert [update.resources_id for update in await store.query_resources(resources_id="rs-c")] == ["rs-c"]
    assert len(await store.query_resources(resources_id_contains="rs-")) == 3
    started = await store.start_rollout("x")
    await store.start_attempt(started.rollout_id)
    page = await store.query_attempts(started.rollout_id, sort_order="desc", limit=1)
    assert ([attempt.sequence_id for attempt in page], page.total) == ([2], 2)
