"""Many sessions that wait: a turn of the learner reads those that are new or ready, and no others."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from apps.learning.test_learning import a_learner, answers, step
from mini_agentic_rl.apps.learning import EndedSessions, SessionBook, SessionRecord, Sessions, UseFolder, UseSettings
from mini_agentic_rl.apps.learning.waiting import Baselines, JudgedSession, Lesson, choose
from mini_agentic_rl.gateway import MiniLLMServer, ServedPolicy
from mini_agentic_rl.store import LightningStore

LONE = 12


@pytest.fixture
def reads(file_store: LightningStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many sessions were read from the store, and how many times their calls."""
    counted: Counter[str] = Counter()
    rollouts, spans = file_store.query_rollouts, file_store.query_spans

    async def query_rollouts(**given: Any) -> Any:
        found = await rollouts(**given)
        counted["sessions"] += len(found)
        return found

    async def query_spans(*given: Any, **more: Any) -> Any:
        counted["calls"] += 1
        return await spans(*given, **more)

    monkeypatch.setattr(file_store, "query_rollouts", query_rollouts)
    monkeypatch.setattr(file_store, "query_spans", query_spans)
    return counted


def turned(learner: Any, reads: Counter[str]) -> int:
    """Take no step, and return how many sessions had their calls read."""
    reads.clear()
    assert asyncio.run(learner.turn()) is None
    return reads["calls"]


def test_sessions_that_wait_are_read_once_however_often_the_learner_looks(
    gateway: MiniLLMServer,
    served: ServedPolicy,
    file_store: LightningStore,
    alice: Sessions,
    folder: UseFolder,
    reads: Counter[str],
) -> None:
    learner = a_learner(served.policy, file_store, folder, min_sessions=2)
    names = [f"lone-{number}" for number in range(LONE)]
    for name in names:
        answers(gateway, [name], key=name)
        alice.reward(name, 1.0)
    assert turned(learner, reads) == LONE
    assert turned(learner, reads) == 0
    answers(gateway, ["new"], key="lone-3")
    alice.reward("new", 0.0)
    reads.clear()
    assert step(learner)["sessions"] == 2
    assert reads["calls"] == 3  # the new one, and then both that are learnt from
    assert {alice.show(name)["status"] for name in ("new", "lone-3")} == {"learnt"}
    assert alice.show("lone-4")["status"] == "judged"
    assert turned(learner, reads) == 0


def test_a_learner_that_begins_again_passes_over_what_was_learnt_long_ago(
    gateway: MiniLLMServer,
    served: ServedPolicy,
    file_store: LightningStore,
    alice: Sessions,
    folder: UseFolder,
    reads: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mini_agentic_rl.apps.learning.learner._PAGE", 2)
    monkeypatch.setattr("mini_agentic_rl.apps.learning.learner._OVERLAP_SECONDS", 0.0)
    learner = a_learner(served.policy, file_store, folder)
    for first in range(0, 12, 4):
        batch = [f"s{number}" for number in range(first, first + 4)]
        answers(gateway, batch)
        for name in batch:
            alice.reward(name, float(name in ("s0", "s5", "s10")))
        step(learner)
    answers(gateway, ["late"], key="its own")
    alice.reward("late", 1.0)
    again = a_learner(served.policy, file_store, folder)
    asyncio.run(again.resume())
    reads.clear()
    assert asyncio.run(again.turn()) is None
    assert reads["sessions"] <= 9, "twelve were learnt from, and four of them in the last step"


def test_a_session_that_waits_is_found_again_when_a_new_one_is_compared_with_it(
    gateway: MiniLLMServer, served: ServedPolicy, file_store: LightningStore, alice: Sessions, folder: UseFolder
) -> None:
    learner = a_learner(served.policy, file_store, folder, min_sessions=2)
    answers(gateway, ["old"], key="one")
    alice.reward("old", 0.5)
    assert asyncio.run(learner.turn()) is None
    answers(gateway, ["new"], key="two")
    alice.score_group({"old": 0.0, "new": 1.0}, replace=True)
    assert step(learner)["sessions"] == 2


def test_what_is_deleted_while_it_waits_leaves_the_other_of_its_key_waiting(
    gateway: MiniLLMServer, served: ServedPolicy, file_store: LightningStore, alice: Sessions, folder: UseFolder
) -> None:
    learner = a_learner(served.policy, file_store, folder, min_sessions=3)
    answers(gateway, list("ab"))
    for name in "ab":
        alice.reward(name, float(name == "a"))
    assert asyncio.run(learner.turn()) is None
    alice.delete("a")
    learner.settings = UseSettings(min_sessions=1)
    assert asyncio.run(learner.turn()) is None
    assert alice.show("b")["status"] == "judged"


def test_sessions_that_are_over_are_found_a_bounded_number_at_a_time(
    gateway: MiniLLMServer,
    file_store: LightningStore,
    alice: Sessions,
    reads: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mini_agentic_rl.apps.learning.judging._PAGE", 2)
    monkeypatch.setattr("mini_agentic_rl.apps.learning.judging._PAGES", 2)
    names = [f"s{number}" for number in range(7)]
    answers(gateway, names)
    for name in names:
        alice.end(name)
    ended, looks = EndedSessions(SessionBook(file_store), NoJudge(), 100), 1
    reads.clear()
    while not asyncio.run(ended.look()):
        looks += 1
    assert looks == 4
    assert reads["sessions"] <= 4 * looks
    assert sum(map(len, ended._waiting.values())) == len(names)


def test_a_session_alone_in_a_comparison_is_left_out_once_all_are_read() -> None:
    record = SessionRecord("s", "owner", "", "ro-1", "at-1", 0.0, judged=True)
    waiting = [JudgedSession(record, 0.0, [Lesson(record, 1.0, "co-1", (), 0.0)])]
    assert choose(waiting, Baselines(), 8, all_read=False).skipped == {}
    assert choose(waiting, Baselines(), 8).skipped == {record.ids: "what it was compared with is gone"}


class NoJudge:
    """Is never asked: there are too few sessions."""
