"""The pages tell the same of every store: which rollouts a filter passes, and which groups there are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mini_agentic_rl.apps.dashboard import store_source
from mini_agentic_rl.apps.dashboard.browse import Browser, RolloutFilter
from mini_agentic_rl.store import InMemoryLightningStore, LightningStore
from mini_agentic_rl.types import Rollout, RolloutConfig, Span
from store.conftest import KINDS, opened_store
from store.postgres import needs_postgres

EVERY_KIND = [kind for kind in KINDS if kind != "threaded"]
EVERY_KIND.append(pytest.param("http-postgres", marks=needs_postgres))
AGAIN = RolloutConfig(max_attempts=2, retry_condition=["failed"])

PASSES = (
    (RolloutFilter(), "abcdef"),
    (RolloutFilter(status=("succeeded",)), "ae"),
    (RolloutFilter(status=("failed", "cancelled")), "bf"),
    (RolloutFilter(status=("queuing",)), ""),
    (RolloutFilter(mode="val"), "c"),
    (RolloutFilter(reward_min=0.25), "abc"),
    (RolloutFilter(reward_max=0.5), "bc"),
    (RolloutFilter(reward_min=0.3, reward_max=0.6), "c"),
    (RolloutFilter(status=("succeeded",), reward_min=0.5), "a"),
    (RolloutFilter(worker="runner-1"), "ac"),
    (RolloutFilter(worker="Runner"), ""),
    (RolloutFilter(task="four"), "a"),
    (RolloutFilter(task='"four"'), "a"),
    (RolloutFilter(task='"answer"'), ""),
    (RolloutFilter(task="größer 三"), "f"),
    (RolloutFilter(task="三\nnew"), "f"),
    (RolloutFilter(task="answer"), "a"),
    (RolloutFilter(text="no tool"), "b"),
    (RolloutFilter(text="said ü"), "c"),
    (RolloutFilter(text="first try"), "e"),
    (RolloutFilter(text="an odd note"), "d"),
    (RolloutFilter(text="ro-d"), "d"),
    (RolloutFilter(text="it broke"), "b"),
    (RolloutFilter(text="four", worker="runner-2"), ""),
    (RolloutFilter(group="0/1"), "cd"),
    (RolloutFilter(step=2), "e"),
    (RolloutFilter(step=1, status=("running",)), "c"),
)


async def add(store: LightningStore, name: str, task: dict, worker: str, **kept) -> dict[str, str]:
    """Begin a rollout; return the ids of its attempt."""
    started = await store.start_rollout({"name": name} | task, rollout_id=f"ro-{name}", worker_id=worker, **kept)
    return {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}


async def give(store: LightningStore, ids: dict[str, str], number: int, reward: float | None = None, **fields) -> None:
    """Add a span."""
    rewarded = {} if reward is None else {"agentlightning.reward.0.value": reward}
    attributes = fields.pop("attributes", {}) | rewarded
    trace = {"trace_id": "ab" * 16, "span_id": f"{number:016x}", "sequence_id": number, "name": "note"}
    await store.add_span(Span(**ids, **trace, attributes=attributes, **fields))


async def fill(store: LightningStore) -> None:
    """Put rollouts of every kind into a store."""
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


async def passed(browser: Browser, wanted: RolloutFilter, limit: int = 2) -> str:
    """Return the names of the rollouts that pass, in the order in which they were queued."""
    names, cursor = "", None
    while True:
        page = await browser.page(wanted, cursor, limit)
        names += "".join(row["id"][-1] for row in page.items)
        if page.next is None:
            return names[::-1]
        cursor = page.next


@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_filters_pass_the_same_rollouts_and_groups_are_the_same(kind: str, tmp_path: Path) -> None:
    async with opened_store(kind, tmp_path) as store:
        await fill(store)
        browser = store_source(store).browser
        assert {row["id"]: row["reward"] for row in await browser.rows(["ro-a", "ro-e"])} == {"ro-a": 1, "ro-e": None}
        assert await browser.indexed(60)
        assert {wanted: await passed(browser, wanted) for wanted, _ in PASSES} == dict(PASSES)
        newest, after = await browser.groups(None, 2)
        oldest, end = await browser.groups(after, 2)
        assert [(one["group"], one["step"], one["rewards"]) for one in (*newest, *oldest)] == [
            ("1/0", 2, [None]),
            ("0/1", 1, [0.5, None]),
            ("0/0", 1, [1.0, 0.25]),
        ]
        assert end is None
        assert list(await browser.group("0/1")) == ["ro-c", "ro-d"]
        assert list(await browser.group("9/9")) == []
        await browser.close()


async def groups_of(browser: Browser) -> dict[str, int]:
    """Return the number of rollouts of each group, the newest first."""
    found, _ = await browser.groups(None, 100)
    return {one["group"]: one["count"] for one in found}


@pytest.mark.parametrize(
    "gone", [(0, 1), (3,), (5,), (4, 5), (0, 2, 4, 5), range(6)], ids=lambda gone: "-".join(map(str, gone))
)
async def test_deleted_rollouts_leave_the_groups_and_later_ones_enter_them(gone: Sequence[int]) -> None:
    store = InMemoryLightningStore()
    browser = store_source(store).browser
    for number in range(6):
        await add(store, str(number), {}, "w", metadata={"group": f"0/{number // 2}"})
    assert await groups_of(browser) == {"0/2": 2, "0/1": 2, "0/0": 2}
    await store.delete_rollouts([f"ro-{number}" for number in gone])
    await add(store, "6", {}, "w", metadata={"group": "0/3"})
    left = [f"0/{number // 2}" for number in range(7) if number not in gone]
    assert await groups_of(browser) == {group: left.count(group) for group in sorted(set(left), reverse=True)}
    found = await browser.rows(await browser.group("0/1"))
    assert [one["id"] for one in found] == [f"ro-{number}" for number in (2, 3) if number not in gone]


async def test_a_group_is_told_anew_when_a_rollout_enters_it_or_ends() -> None:
    store = InMemoryLightningStore()
    browser = store_source(store).browser
    first = await add(store, "1", {}, "w", metadata={"group": "0/0"})
    assert [one["rewards"] for one in (await browser.groups(None, 9))[0]] == [[None]]
    await give(store, first, 1, 1.0)
    await store.update_attempt(**first, status="succeeded")
    await add(store, "2", {}, "w", metadata={"group": "0/0"})
    assert [one["rewards"] for one in (await browser.groups(None, 9))[0]] == [[1.0, None]]


async def test_the_rewards_of_a_group_that_has_ended_are_read_once_and_leave_with_its_rollouts() -> None:
    class CountingStore(InMemoryLightningStore):
        asked = 0

        async def get_reward_spans(self, rollout_ids):
            self.asked += len(rollout_ids)
            return await super().get_reward_spans(rollout_ids)

    def put(tables) -> None:
        for number in range(4):
            kept = {"status": "succeeded", "start_time": 1.0, "end_time": 2.0, "metadata": {"group": "0/0"}}
            tables.insert_rollouts([Rollout(rollout_id=f"ro-{number}", input=f"task {number}", **kept)])

    store = CountingStore()
    await store.take_over(put)
    browser = store_source(store).browser
    for _ in range(3):
        assert await groups_of(browser) == {"0/0": 4}
    assert store.asked == 4
    await store.delete_rollouts(["ro-0"])
    (line,) = (await browser.groups(None, 100))[0]
    assert (line["count"], line["task"]) == (3, "task 1")
    await store.delete_rollouts([f"ro-{number}" for number in range(4)])
    assert await groups_of(browser) == {}


async def test_rollouts_that_are_queued_between_two_pages_shift_none() -> None:
    store = InMemoryLightningStore()
    browser = store_source(store).browser
    for number in range(8):
        await add(store, str(number), {}, "w")
    page = await browser.page(RolloutFilter(), None, 3)
    seen = [row["id"] for row in page.items]
    for number in range(8, 13):
        await add(store, f"x{number}", {}, "w")
    while page.next is not None:
        page = await browser.page(RolloutFilter(), page.next, 3)
        seen += [row["id"] for row in page.items]
    assert seen == [f"ro-{number}" for number in range(7, -1, -1)]


async def test_counts_are_asked_for_again_when_they_are_old_and_never_at_every_look() -> None:
    class SlowCounts(InMemoryLightningStore):
        asked = 0

        async def statistics(self):
            self.asked += 1
            await asyncio.sleep(0.2)
            return await super().statistics()

    store = SlowCounts()
    browser = store_source(store).browser
    await add(store, "1", {}, "w")
    marks = [json.loads(await browser.mark()) for _ in range(20)]
    assert (await browser.totals())["rollouts"] == 1
    assert marks[0][0]["total_rollouts"] == 1
    assert store.asked < 5
