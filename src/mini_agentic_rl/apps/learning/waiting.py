"""Judged sessions that wait to be learnt from: their lessons, baselines, and the choice of the next step's sessions.

A session is read from the store when it has been judged, and again when it is learnt from. Between the two only a
heading of it is kept in memory.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ...adapter import TrainedCalls, is_completion
from ...algorithm.advantages import EPSILON, group_normalized
from ...algorithm.losses import Floats
from ...semconv import CompletionSpanAttributes as Call
from ...tokens import GREEDY_BELOW, CompletionRecord
from ...types import Span
from . import Answer, SessionRecord, SessionReward, latest_rewards

# Lessons: the calls of a judged session and the reward that they share.


GRACE_SECONDS: Final = 60.0
"""Time that the other sessions of a comparison have to be judged as well, one after another."""


@dataclass(frozen=True)
class Lesson:
    """The calls that one reward is for."""

    record: SessionRecord
    value: float
    comparison: str | None
    records: Sequence[CompletionRecord]
    judged_at: float

    @property
    def group(self) -> str:
        """Return the id of its comparison, or the owner and key whose sessions it is compared with."""
        return self.comparison or f"{self.record.owner}/{self.record.key}"


@dataclass(frozen=True)
class JudgedSession:
    """A session with its lessons, or the reason why there are none."""

    record: SessionRecord
    lessons: Sequence[Lesson] = field(default=())
    why_not: str | None = None


def read_session(
    record: SessionRecord, spans: Sequence[Span], trained: TrainedCalls, version: int, max_age: int
) -> JudgedSession:
    """Return the lessons of a session.

    Args:
        spans: all of the session.
        trained: which calls are the policy's.
        version: of the policy now.
        max_age: versions that the oldest call may be behind.
    """
    rewards = latest_rewards(spans)
    outcomes = [_lesson(record, spans, reward, rewards, trained) for reward in rewards.values()]
    reasons = [why for lesson, why in outcomes if lesson is None]
    lessons = [lesson for lesson, _ in outcomes if lesson is not None]
    if not lessons:
        return JudgedSession(record, why_not=reasons[0] if reasons else "it has no reward")
    age = version - min(call.version for lesson in lessons for call in lesson.records)
    if age > max_age:
        return JudgedSession(record, why_not=f"the weights that answered are {age} versions old (max_age={max_age})")
    return JudgedSession(record, lessons)


def is_recent(lesson: Lesson) -> bool:
    """Return True if the rest of its comparison may still be on its way."""
    return time.time() - lesson.judged_at < GRACE_SECONDS


def _lesson(
    record: SessionRecord,
    spans: Sequence[Span],
    reward: SessionReward,
    rewards: dict[Answer | None, SessionReward],
    trained: TrainedCalls,
) -> tuple[Lesson | None, str]:
    """Return the lesson of a reward, or why there is none. What has a reward of its own is no part of the session's;
    what came after a reward is not meant by it."""
    judged_at = next((s.start_time or 0.0 for s in spans if s.sequence_id == reward.sequence_id), 0.0)
    own = {answer for answer in rewards if answer is not None}
    meant = [
        span
        for span in spans
        if span.sequence_id < reward.sequence_id
        and not (is_completion(span) and not _is_meant(_answer(span), reward.answer, own))
    ]
    selection = trained.select(meant)
    records = [call for call in selection.records if call.temperature >= GREEDY_BELOW]
    if records:
        return Lesson(record, reward.value, reward.comparison, records, judged_at), ""
    if selection.records:
        return None, "all its calls were at temperature 0, where nothing was tried that could be learnt"
    return None, selection.why_empty or "it has no call before its reward"


def _is_meant(answer: Answer, about: Answer | None, own: set[Answer]) -> bool:
    return answer == about if about is not None else answer not in own


def _answer(span: Span) -> Answer:
    choice = span.attributes.get(Call.CHOICE_INDEX, 0)
    response = Answer(str(span.attributes.get(Call.RESPONSE_ID, "")))
    return Answer(response.call, int(choice) if isinstance(choice, int) else 0)


# Baselines of sessions: what a reward is compared with, where it stands by itself.
#
# Let r_1 … r_G be the rewards of the sessions of one key in a step, m the running mean of the rewards of that key
# before the step, and n the weight of that memory, at most N. The baseline of r_i has nothing of r_i itself, so that
# the policy gradient stays unbiased (as with RLOO; Kool et al. 2019):
#
#     b_i = (n m + sum over j != i of r_j) / (n + G - 1)        A_i = (r_i - b_i) / s
#
# and s is the standard deviation of rewards over all keys, so far. A session alone is compared with what its key earned
# before (n = its memory, G = 1: the running baseline of REINFORCE; Williams 1992); sessions of a new key with each
# other (n = 0); one alone with a new key with nothing: it has to wait. Numbers of a comparison are compared within it
# alone, (r - mean) / std, as GRPO does.


_MEMORY: Final = 16.0
"""N: rewards that the mean of a key remembers, about."""
_OF_ALL: Final = 256.0
"""The same for the standard deviation over all keys."""
_KEYS: Final = 65_536
"""Keys that are remembered; the one seen longest ago is forgotten first."""


class Baselines:
    """Running means by key, and the running standard deviation of all."""

    def __init__(self) -> None:
        self._means: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._all = (0.0, 0.0, 0.0)
        """Mean, variance, and weight of both."""

    def expected(self, key: str, others: Sequence[float]) -> float | None:
        """Return the baseline of a reward, given the other rewards of its key; None if there is nothing to compare."""
        mean, weight = self._means.get(key, (0.0, 0.0))
        total = weight + len(others)
        return None if total == 0 else (weight * mean + sum(others)) / total

    def __contains__(self, key: str) -> bool:
        """Return True if a reward of this key can be compared with earlier ones."""
        return key in self._means

    def deviation(self, rewards: Sequence[float]) -> float:
        """Return the standard deviation of all rewards, these among them."""
        mean, variance, weight = self._all
        values: Floats = np.array(rewards, np.float64)
        total = weight + values.size
        if total == 0:
            return 0.0
        new = (weight * mean + values.sum()) / total
        spread = weight * (variance + (mean - new) ** 2) + ((values - new) ** 2).sum()
        return math.sqrt(max(0.0, float(spread) / total))

    def add(self, key: str, reward: float) -> None:
        """Remember a reward."""
        mean, weight = self._means.pop(key, (0.0, 0.0))
        weight = min(weight, _MEMORY - 1)
        self._means[key] = ((weight * mean + reward) / (weight + 1), weight + 1)
        if len(self._means) > _KEYS:
            self._means.popitem(last=False)
        mean, variance, weight = self._all
        weight = min(weight, _OF_ALL - 1)
        new = (weight * mean + reward) / (weight + 1)
        variance = (weight * (variance + (mean - new) ** 2) + (reward - new) ** 2) / (weight + 1)
        self._all = (new, variance, weight + 1)

    def state(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        return {"keys": [[key, *values] for key, values in self._means.items()], "all": list(self._all)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Baselines:
        """Restore baselines from their `state`."""
        made = cls()
        made._means.update((str(key), (float(mean), float(weight))) for key, mean, weight in state["keys"])
        mean, variance, weight = map(float, state["all"])
        made._all = (mean, variance, weight)
        return made


_MOST_SOUGHT: Final = 65_536
"""Comparisons that `seek_the_others` remembers."""


@dataclass(frozen=True)
class Heading:
    """Facts of a waiting session that are kept in memory."""

    owner: str
    judged_at: float
    """End of its rollout, seconds since the epoch."""
    lessons: Mapping[str, int]
    """Number of its lessons in each group that it is compared within."""
    comparisons: frozenset[str]
    """The groups that are comparisons; the others are keys."""
    oldest_version: int
    """Version that answered the oldest call."""
    alone_until: float
    """Time until which the rest of its comparisons may still arrive; 0 without a comparison."""


class WaitingSessions:
    """Judged sessions that wait to be learnt from, by the ids of their rollouts.

    Every question looks at all headings, which takes milliseconds for thousands of sessions; the store is not asked.

    Args:
        baselines: what rewards outside of comparisons are compared with.
    """

    def __init__(self, baselines: Baselines) -> None:
        self._baselines = baselines
        self._unread: dict[str, float] = {}
        """Times at which the sessions that were not read yet were judged."""
        self._headings: dict[str, Heading] = {}
        self._sought: set[str] = set()
        self._grouped: tuple[dict[str, list[str]], Counter[str]] | None = None
        """Result of `_groups`, until a heading changes."""

    def __len__(self) -> int:
        return len(self._unread) + len(self._headings)

    @property
    def all_read(self) -> bool:
        """True if no session waits to be read."""
        return not self._unread

    def since(self) -> float | None:
        """Return when the session that has waited longest was judged; None if none waits."""
        times = [*self._unread.values(), *(heading.judged_at for heading in self._headings.values())]
        return min(times, default=None)

    def note(self, rollout_id: str, judged_at: float) -> None:
        """Remember a session that has been judged; it is read later."""
        if rollout_id not in self._headings:
            self._unread.setdefault(rollout_id, judged_at)

    def unread(self, most: int) -> list[str]:
        """Return up to `most` sessions that have not been read, in the order in which they were judged."""
        return sorted(self._unread, key=lambda rollout_id: self._unread[rollout_id])[:most]

    def keep(self, session: JudgedSession, judged_at: float) -> bool:
        """Store the heading of a session; return True if it has changed."""
        rollout_id = session.record.rollout_id
        compared = [lesson for lesson in session.lessons if lesson.comparison is not None]
        heading = Heading(
            owner=session.record.owner,
            judged_at=judged_at,
            lessons=Counter(lesson.group for lesson in session.lessons),
            comparisons=frozenset(lesson.group for lesson in compared),
            oldest_version=min((call.version for lesson in session.lessons for call in lesson.records), default=0),
            alone_until=max((lesson.judged_at + GRACE_SECONDS for lesson in compared), default=0.0),
        )
        self._unread.pop(rollout_id, None)
        changed = self._headings.get(rollout_id) != heading
        if changed:
            self._headings[rollout_id] = heading
            self._grouped = None
        return changed

    def forget(self, rollout_id: str) -> None:
        """Forget a session."""
        self._unread.pop(rollout_id, None)
        if self._headings.pop(rollout_id, None) is not None:
            self._grouped = None

    def candidates(self, most: int) -> list[str]:
        """Return sessions that have something to be compared with, about `most`, each with those that it has to be
        learnt from together."""
        members, lessons = self._groups()
        chosen: dict[str, None] = {}
        for rollout_id, heading in self._ready(lessons):
            if len(chosen) >= most:
                break
            chosen[rollout_id] = None
            for group in heading.lessons:
                if group in heading.comparisons:
                    chosen |= dict.fromkeys(members[group])
                elif group not in self._baselines:
                    chosen |= dict.fromkeys(members[group][:2])
        return list(chosen)

    def overdue(self, version: int, max_age: int, now: float) -> list[str]:
        """Return sessions that may have to be left out, each with all that it is compared with.

        Their answers are of weights that are too old, or, once all sessions are read, they are alone in a comparison
        for too long.
        """
        members, lessons = self._groups()
        chosen: dict[str, None] = {}
        for rollout_id, heading in self._headings.items():
            is_old = bool(heading.lessons) and version - heading.oldest_version > max_age
            waited = self.all_read and heading.alone_until < now
            is_alone = waited and any(lessons[group] < 2 for group in heading.comparisons)
            if is_old or is_alone:
                chosen[rollout_id] = None
                for group in heading.comparisons:
                    chosen |= dict.fromkeys(members[group])
        return list(chosen)

    def seek_the_others(self) -> bool:
        """Have all sessions of an owner read again if one of them is alone in a comparison, once for each comparison:
        the others may have been read before they were compared. Return True if there are sessions to read."""
        _, lessons = self._groups()
        owners: set[str] = set()
        if len(self._sought) > _MOST_SOUGHT:
            self._sought.clear()
        for heading in self._headings.values():
            alone = {group for group in heading.comparisons if lessons[group] == 1 and group not in self._sought}
            if alone:
                self._sought |= alone
                owners.add(heading.owner)
        if not owners:
            return False
        again = {name: heading.judged_at for name, heading in self._headings.items() if heading.owner in owners}
        for rollout_id in again:
            self.forget(rollout_id)
        self._unread |= again
        return True

    def _groups(self) -> tuple[dict[str, list[str]], Counter[str]]:
        """Return the sessions of each group, and the number of their lessons in it."""
        if self._grouped is not None:
            return self._grouped
        members: dict[str, list[str]] = {}
        lessons: Counter[str] = Counter()
        for rollout_id, heading in self._headings.items():
            for group, count in heading.lessons.items():
                members.setdefault(group, []).append(rollout_id)
                lessons[group] += count
        self._grouped = members, lessons
        return self._grouped

    def _ready(self, lessons: Mapping[str, int]) -> Iterator[tuple[str, Heading]]:
        """Yield the sessions whose every lesson has another one or a baseline to be compared with."""
        for rollout_id, heading in self._headings.items():
            if heading.lessons and all(
                lessons[group] > 1 or (group in self._baselines and group not in heading.comparisons)
                for group in heading.lessons
            ):
                yield rollout_id, heading


# The lessons that are complete, and their advantages.


@dataclass
class SessionChoice:
    """Sessions of the next step."""

    taken: list[JudgedSession] = field(default_factory=list)
    skipped: dict[tuple[str, str], str] = field(default_factory=dict)
    """Reasons for which sessions are skipped for good, by rollout and attempt id."""


def choose(sessions: Sequence[JudgedSession], baselines: Baselines, most: int) -> SessionChoice:
    """Choose up to `most` sessions whose every lesson can be compared.

    A comparison is taken whole, whatever `most` says, and a session of a new key is not taken alone. What else has
    nothing beside it waits.
    """
    choice = SessionChoice()
    groups: dict[str, list[Lesson]] = {}
    for session in sessions:
        if session.why_not is not None:
            choice.skipped[session.record.ids] = session.why_not
        for lesson in session.lessons:
            groups.setdefault(lesson.group, []).append(lesson)
    complete: dict[str, bool] = {}
    for name, lessons in groups.items():
        alone = len(lessons) < 2
        complete[name] = not alone or (lessons[0].comparison is None and name in baselines)
        if alone and lessons[0].comparison is not None and not is_recent(lessons[0]):
            choice.skipped[lessons[0].record.ids] = "what it was compared with is gone"
    begun: set[str] = set()
    of_new_keys: Counter[str] = Counter()
    for session in sessions:
        names = {lesson.group for lesson in session.lessons}
        if session.record.ids in choice.skipped or not names or not all(complete[name] for name in names):
            continue
        if len(choice.taken) < most or begun & names or any(of_new_keys[name] == 1 for name in names):
            choice.taken.append(session)
            begun |= {lesson.group for lesson in session.lessons if lesson.comparison is not None}
            by_themselves = (lesson.group for lesson in session.lessons if lesson.comparison is None)
            of_new_keys.update(name for name in by_themselves if name not in baselines)
    return choice


def advantages(lessons: Sequence[Lesson], baselines: Baselines) -> list[tuple[Lesson, float]]:
    """Return each lesson with its advantage (see `Baselines`); lessons that cannot be compared any more are dropped."""
    groups: dict[str, list[Lesson]] = {}
    for lesson in lessons:
        groups.setdefault(lesson.group, []).append(lesson)
    deviation = baselines.deviation([lesson.value for lesson in lessons if lesson.comparison is None])
    with_advantages: list[tuple[Lesson, float]] = []
    for name, of_group in groups.items():
        values = [lesson.value for lesson in of_group]
        if of_group[0].comparison is not None:
            compared = group_normalized(np.array(values, np.float64))
            with_advantages += [(lesson, float(value)) for lesson, value in zip(of_group, compared, strict=True)]
            continue
        for index, lesson in enumerate(of_group):
            expected = baselines.expected(name, [*values[:index], *values[index + 1 :]])
            if expected is not None:
                with_advantages.append((lesson, (lesson.value - expected) / (deviation + EPSILON)))
    return with_advantages
