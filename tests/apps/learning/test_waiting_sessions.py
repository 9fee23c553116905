"""The index of sessions that wait says of any of them what a look at all of them says."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from mini_agentic_rl.apps.learning import SessionRecord
from mini_agentic_rl.apps.learning.waiting import Baselines, JudgedSession, Lesson, WaitingSessions, choose
from mini_agentic_rl.tokens import CompletionRecord

CALL = CompletionRecord(
    prompt_ids=np.array([1]), output_ids=np.array([2]), logprobs=np.zeros(1, np.float32), sequence_id=1
)


def session(name: str, *groups: str, judged_at: float | None = None) -> JudgedSession:
    """A session with a lesson for each group; one that begins with "co" is a comparison, the others are keys."""
    record = SessionRecord(name, "owner", "", name, f"at-{name}", 0.0, judged=True)
    at = time.time() if judged_at is None else judged_at
    comparisons = [group if group.startswith("co") else None for group in groups]
    records = [
        SessionRecord(name, "owner", group, name, f"at-{name}", 0.0, judged=True) if comparison is None else record
        for group, comparison in zip(groups, comparisons, strict=True)
    ]
    lessons = [Lesson(one, 1.0, comparison, [CALL], at) for one, comparison in zip(records, comparisons, strict=True)]
    return JudgedSession(record, lessons)


def read(waiting: WaitingSessions, one: JudgedSession, judged_at: float = 1.0) -> None:
    waiting.note(one.record.rollout_id, judged_at)
    waiting.unread(1000)
    waiting.keep(one, judged_at)


@pytest.mark.parametrize("seed", range(8))
def test_those_that_are_ready_are_those_that_a_look_at_all_would_choose(seed: int) -> None:
    draw, baselines = random.Random(seed), Baselines()
    waiting = WaitingSessions(baselines)
    there: dict[str, JudgedSession] = {}
    groups = ["a", "b", "c", "co-1", "co-2", "co-3", "co-4"]
    for number in range(300):
        kind = draw.random()
        if kind < 0.6 or not there:
            name = str(draw.randrange(30))
            there[name] = session(name, *draw.choices(groups, k=draw.choice([1, 1, 1, 2, 3])))
            read(waiting, there[name])
        elif kind < 0.95:
            gone = draw.choice(list(there))
            del there[gone]
            waiting.forget(gone)
        elif number > 200:
            key = f"owner/{draw.choice(groups[:3])}"
            baselines.add(key, 1.0)
        chosen = {one.record.rollout_id for one in choose(list(there.values()), baselines, 1000).taken}
        _, lessons = waiting._groups()
        assert {name for name, _ in waiting._ready(lessons)} == chosen
        assert chosen <= set(waiting.candidates(1000)) <= set(there)
        assert len(waiting) == len(there)


def test_a_candidate_comes_with_what_it_is_learnt_from_together() -> None:
    waiting = WaitingSessions(Baselines())
    for name in "abcdefgh":
        read(waiting, session(name, f"co-{'abcdefgh'.index(name) // 4}"))
    assert set(waiting.candidates(1)) == set("abcd")
    new = WaitingSessions(Baselines())
    for name in "ijk":
        read(new, session(name, "key"))
    assert len(new.candidates(1)) == 2


def test_a_session_alone_in_a_comparison_is_sought_once_and_then_overdue() -> None:
    waiting = WaitingSessions(Baselines())
    read(waiting, session("old", "key"))
    read(waiting, session("alone", "co-1", judged_at=time.time() - 100))
    waiting.seek_the_others()
    assert sorted(waiting.unread(10)) == ["alone", "old"]
    waiting.keep(session("old", "key"), 1.0)
    assert waiting.overdue(0, 9, time.time()) == [], "not before all are read"
    waiting.keep(session("alone", "co-1", judged_at=time.time() - 100), 1.0)
    waiting.seek_the_others()
    assert waiting.all_read
    assert waiting.overdue(0, 9, time.time()) == ["alone"]
    assert sorted(waiting.overdue(10, 9, time.time())) == ["alone", "old"], "now the weights are too old"


def test_the_time_to_look_from_is_that_of_the_oldest_that_waits() -> None:
    waiting = WaitingSessions(Baselines())
    assert waiting.since() is None
    for name, judged_at in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        waiting.note(name, judged_at)
    assert waiting.since() == 1.0
    waiting.forget("a")
    assert waiting.since() == 2.0
