"""Listings filter, page and group the same way in every store, and their columns follow what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mini_agentic_rl.store import LightningStore, ledger, listing
from mini_agentic_rl.types import RolloutConfig, Span

from .conftest import make_store

AGAIN = RolloutConfig(max_attempts=2, retry_condition=["failed"])

PASSES: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "abcdef"),
    ({"status_in": ["succeeded"]}, "ae"),
    ({"status_in": ["failed", "cancelled"]}, "bf"),
    ({"status_in": ["queuing"]}, ""),
    ({"mode": "val"}, "c"),
    ({"reward_min": 0.25}, "abc"),
    ({"reward_max": 0.5}, "bc"),
    ({"reward_min": 0.3, "reward_max": 0.6}, "c"),
    ({"status_in": ["succeeded"], "reward_min": 0.5}, "a"),
    ({"worker_contains": "runner-1"}, "ac"),
    ({"worker_contains": "Runner"}, ""),
    ({"input_contains": '"four"'}, "a"),
    ({"input_contains": '"answer"'}, ""),
    ({"input_contains": "größer 三\nnew"}, "f"),
    ({"text": "no tool"}, "b"),
    ({"text": "said ü"}, "c"),
    ({"text": "first try"}, "e"),
    ({"text": "an odd note"}, "d"),
    ({"text": "ro-d"}, "d"),
    ({"text": "it broke"}, "b"),
    ({"text": "four", "worker_contains": "runner-2"}, ""),
    ({"group": "0/1"}, "cd"),
    ({"group": "9/9"}, ""),
    ({"step": 1}, "e"),
    ({"step": 0, "status_in": ["running"]}, "c"),
)


async def add(store: LightningStore, name: str, task: Any = None, worker: str = "w", **kept: Any) -> dict[str, str]:
    """Begin the rollout `ro-NAME`; return the ids of its attempt."""
    started = await store.start_rollout(
        {"name": name} | (task or {}), rollout_id=f"ro-{name}", worker_id=worker, **kept
    )
    return {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}


async def give(
    store: LightningStore, ids: dict[str, str], number: int, reward: float | None = None, **fields: Any
) -> None:
    """Add a span with this sequence id."""
    rewarded = {} if reward is None else {"agentlightning.reward.0.value": reward}
    attributes = fields.pop("attributes", {}) | rewarded
    trace = {"trace_id": "ab" * 16, "span_id": f"{number:016x}", "sequence_id": number, "name": "note"}
    await store.add_span(Span(**ids, **trace, attributes=attributes, **fields))


async def names(store: LightningStore, limit: int = 2, **conditions: Any) -> str:
    """Return the names of the rollouts that pass, oldest first, from all pages."""
    found, before = "", None
    while True:
        page = await store.list_rollouts(**conditions, before=before, limit=limit)
        found += "".join(rollout.rollout_id[-1] for rollout in page.items)
        before = page.next
        if before is None:
            return found[::-1]


async def groups(store: LightningStore, limit: int = 2) -> list[tuple[str, int | None, list[float | None]]]:
    """Return name, step and rewards of all groups, the newest first."""
    found: list[tuple[str, int | None, list[float | None]]] = []
    before = None
    while True:
        page = await store.list_groups(before=before, limit=limit)
        found += [(group.group, group.step, group.rewards) for group in page.items]
        before = page.next
        if before is None:
            return found


async def test_filters_pages_and_groups(store: LightningStore) -> None:
    first = {"group": "0/0", "step": 0}
    ids = await add(store, "a", {"question": "2 + 2?", "answer": 'is "four"'}, "runner-1", metadata=first)
    await give(store, ids, 1, 1.0)
    await store.update_attempt(**ids, status="succeeded")
    ids = await add(store, "b", {"question": "tools?"}, "runner-2", metadata=first)
    await give(store, ids, 1, 0.25)
    await give(store, ids, 2, events=[{"name": "exception", "attributes": {"exception.message": "it broke"}}])
    await store.update_attempt(**ids, status="failed", metadata={"error": "ValueError: no tool"})
    ids = await add(store, "c", {}, "runner-1b", mode="val", metadata={"group": "0/1", "step": 0})
    await give(store, ids, 1, 0.5, attributes={"said": "he said ü"})
    await add(store, "d", {}, "other", metadata={"group": "0/1", "note": "an odd note"})
    ids = await add(store, "e", {}, "runner-2", config=AGAIN, metadata={"group": "1/0", "step": 1})
    await give(store, ids, 1, 1.0, attributes={"said": "first try"})
    await store.update_attempt(**ids, status="failed")
    await store.start_attempt("ro-e", "runner-3")
    await store.update_attempt("ro-e", "latest", status="succeeded")
    await add(store, "f", {"question": "größer 三\nnew line"}, "other")
    await store.update_rollout("ro-f", status="cancelled")

    for conditions, expected in PASSES:
        assert await names(store, **conditions) == expected, conditions
    page = await store.list_rollouts()
    assert page.rewards == [None, None, None, 0.5, 0.25, 1.0]
    assert [rollout.input["name"] for rollout in page.items] == list("fedcba")
    assert page.next is None
    assert await groups(store) == [("1/0", 1, [None]), ("0/1", 0, [0.5, None]), ("0/0", 0, [1.0, 0.25])]
    assert [group.input["name"] for group in (await store.list_groups()).items] == ["e", "c", "a"]

    counts = (await store.statistics())["rollouts_by_status"]
    assert counts == {"succeeded": 2, "failed": 1, "running": 1, "preparing": 1, "cancelled": 1}
    await store.delete_rollouts(["ro-a", "ro-e"])
    assert await groups(store) == [("0/1", 0, [0.5, None]), ("0/0", 0, [0.25])]
    await store.update_rollout("ro-d", metadata={"group": "2/0", "step": 2})
    assert await groups(store) == [("2/0", 2, [None]), ("0/1", 0, [0.5]), ("0/0", 0, [0.25])]
    assert await names(store, step=2) == "d"


async def test_the_reward_is_that_of_the_last_reward_span_of_the_latest_attempt(store: LightningStore) -> None:
    async def reward() -> float | None:
        return (await store.list_rollouts()).rewards[0]

    ids = await add(store, "1", config=AGAIN)
    await give(store, ids, 5, 0.5)
    await give(store, ids, 3, 0.3)
    assert await reward() == 0.5
    await give(store, ids, 6, attributes={"agentlightning.reward.0.value": "no number"})
    await give(store, ids, 7, attributes={"agentlightning.reward.1.value": 9.0, "agentlightning.reward.0.value": 0.7})
    assert await reward() == 0.7
    second = await store.start_attempt("ro-1")
    assert await reward() is None
    await give(store, ids, 8, 0.8)
    assert await reward() is None
    await give(store, {"rollout_id": "ro-1", "attempt_id": second.attempt.attempt_id}, 9, 0.9)
    assert await reward() == 0.9


async def test_rollouts_that_are_queued_or_deleted_between_two_pages_shift_none(store: LightningStore) -> None:
    for number in range(8):
        await add(store, str(number))
    page = await store.list_rollouts(limit=3)
    listed = [rollout.rollout_id for rollout in page.items]
    for number in range(8, 13):
        await add(store, f"x{number}")
    await store.delete_rollouts(["ro-5", "ro-2"])
    while page.next is not None:
        page = await store.list_rollouts(before=page.next, limit=2)
        listed += [rollout.rollout_id for rollout in page.items]
    assert listed == [f"ro-{number}" for number in (7, 6, 5, 4, 3, 1, 0)]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_search_looks_at_a_bounded_number_of_rollouts(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_EXAMINED", 2)
    store = make_store(kind, tmp_path)
    for number in range(5):
        await add(store, str(number), mode="train" if number else "val")
    page = await store.list_rollouts(mode="val")
    assert page.items == []
    assert page.next is not None
    assert await names(store, mode="val") == "0"
    await store.close()


async def test_a_page_out_of_range_is_refused(store: LightningStore) -> None:
    for method in (store.list_rollouts, store.list_groups):
        for name, value in (("limit", 0), ("limit", 1001), ("before", -1)):
            with pytest.raises(ValueError, match=name):
                await method(**{name: value})


async def test_one_large_rollout_is_deleted_in_slices(store: LightningStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SPANS_DELETED_AT_ONCE", 4)
    for name, spans in (("a", 11), ("b", 1), ("c", 4)):
        ids = await add(store, name)
        for number in range(1, spans + 1):
            await give(store, ids, number)
    assert list(await store.delete_rollouts(["ro-a", "ro-none", "ro-c", "ro-b"])) == ["ro-a", "ro-c", "ro-b"]
    counts = await store.statistics()
    assert (counts["total_rollouts"], counts["total_attempts"], counts["total_spans"]) == (0, 0, 0)


async def test_what_no_database_can_index_is_listed_all_the_same(store: LightningStore) -> None:
    await add(store, "1", metadata={"step": 2**70, "group": "half \ud800 nul \0" + "x" * 9000})
    ((name, step, _),) = await groups(store)
    assert (name[:11], len(name), step) == ("half ? nul ", 200, None)
