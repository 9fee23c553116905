"""The sessions that wait to be learnt from: what is remembered of each, and which can be compared with something.

Each is read once, and again when its turn has come. A heading is kept of it meanwhile, so that a look at those that
are ready takes no time for those that are not, however many there are.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np

from ...adapter import TrainedCalls, is_completion
from ...algorithm.advantages import EPSILON, group_normalized
from ...algorithm.losses import Floats
from ...semconv import CompletionSpanAttributes as Call
from ...tokens import GREEDY_BELOW, CompletionRecord
from ...types import Span
from . import Answer, SessionRecord, SessionReward, latest_rewards

# Lessons: what can be learnt from a judged session, read from its spans.


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
        """Return what its value is compared within: the comparison, or the owner's sessions of the key."""
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
    """Return what can be learnt from a session.

    Args:
        spans: all of the session.
        trained: which calls are the policy's.
        version: of the policy now.
        max_age: versions that the oldest call may be behind.
    """
    rewards = latest_rewards(spans)
    found = [_lesson(record, spans, reward, rewards, trained) for reward in rewards.values()]
    reasons = [why for lesson, why in found if lesson is None]
    lessons = [lesson for lesson, _ in found if lesson is not None]
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
        """Return the baseline of a reward beside others of its key; None where there is nothing to compare it with."""
        mean, weight = self._means.get(key, (0.0, 0.0))
        total = weight + len(others)
        return None if total == 0 else (weight * mean + sum(others)) / total

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
        """Return what `state` gave."""
        made = cls()
        made._means.update((str(key), (float(mean), float(weight))) for key, mean, weight in state["keys"])
        mean, variance, weight = map(float, state["all"])
        made._all = (mean, variance, weight)
        return made


_MOST_SOUGHT: Final = 65_536
"""Comparisons of which is known that the others were sought."""


@dataclass(frozen=True)
class Heading:
    """A session that waits, in short."""

    owner: str
    judged_at: float
    """End of its rollout, seconds since the epoch."""
    lessons: Mapping[str, int]
    """Number of its lessons in each group that it is compared within."""
    comparisons: frozenset[str]
    """Those of the groups that are comparisons; the others are keys."""
    oldest_version: int
    """Version that answered the oldest call."""


class WaitingSessions:
    """Sessions by the ids of their rollouts, and by what they are compared within.

    Args:
        baselines: what rewards are compared with where they stand by themselves.
    """

    def __init__(self, baselines: Baselines) -> None:
        self._baselines = baselines
        self._unread: dict[str, float] = {}
        self._to_read: list[tuple[float, str]] = []
        self._headings: dict[str, Heading] = {}
        self._members: dict[str, dict[str, None]] = {}
        self._lessons: Counter[str] = Counter()
        self._ready: dict[str, None] = {}
        self._by_time: list[tuple[float, str]] = []
        self._by_age: list[tuple[int, str]] = []
        self._alone_until: list[tuple[float, str]] = []
        self._new_comparisons: set[str] = set()
        self._sought: set[str] = set()

    def __len__(self) -> int:
        return len(self._unread) + len(self._headings)

    @property
    def all_read(self) -> bool:
        """True if none waits to be read."""
        return not self._unread

    def since(self) -> float | None:
        """Return when the one that has waited longest was judged; None where none waits."""
        while self._by_time:
            judged_at, rollout_id = self._by_time[0]
            if rollout_id in self._headings or rollout_id in self._unread:
                return judged_at
            heapq.heappop(self._by_time)
        return None

    def note(self, rollout_id: str, judged_at: float) -> None:
        """Remember a session that has been judged; it is read later."""
        if rollout_id not in self._headings and rollout_id not in self._unread:
            self._unread[rollout_id] = judged_at
            heapq.heappush(self._to_read, (judged_at, rollout_id))
            heapq.heappush(self._by_time, (judged_at, rollout_id))

    def unread(self, most: int) -> list[str]:
        """Return sessions that have not been read, those judged first at the head."""
        found: list[str] = []
        while self._to_read and len(found) < most:
            judged_at, rollout_id = heapq.heappop(self._to_read)
            if self._unread.get(rollout_id) == judged_at:
                found.append(rollout_id)
        return found

    def keep(self, session: JudgedSession, judged_at: float) -> bool:
        """Remember what was read of a session; return True if it is not what was known."""
        rollout_id = session.record.rollout_id
        lessons = session.lessons
        heading = Heading(
            owner=session.record.owner,
            judged_at=judged_at,
            lessons=Counter(lesson.group for lesson in lessons),
            comparisons=frozenset(lesson.group for lesson in lessons if lesson.comparison is not None),
            oldest_version=min((call.version for lesson in lessons for call in lesson.records), default=0),
        )
        self._unread.pop(rollout_id, None)
        if self._headings.get(rollout_id) == heading:
            return False
        self.forget(rollout_id)
        self._headings[rollout_id] = heading
        for group in heading.lessons:
            self._members.setdefault(group, {})[rollout_id] = None
        self._lessons.update(heading.lessons)
        heapq.heappush(self._by_age, (heading.oldest_version, rollout_id))
        if heading.comparisons:
            self._new_comparisons |= heading.comparisons - self._sought
            until = max(lesson.judged_at for lesson in lessons if lesson.comparison is not None) + GRACE_SECONDS
            heapq.heappush(self._alone_until, (until, rollout_id))
        self.reconsider(heading.lessons)
        return True

    def forget(self, rollout_id: str) -> None:
        """Forget a session."""
        self._unread.pop(rollout_id, None)
        self._ready.pop(rollout_id, None)
        heading = self._headings.pop(rollout_id, None)
        if heading is None:
            return
        self._lessons.subtract(heading.lessons)
        for group in heading.lessons:
            members = self._members[group]
            del members[rollout_id]
            if not members:
                del self._members[group], self._lessons[group]
        self.reconsider(heading.lessons)

    def reconsider(self, groups: Collection[str]) -> bool:
        """Look again at which sessions of these groups are ready; return True if that has changed.

        Whoever joins or leaves a group of three or more changes nothing for the others.
        """
        changed = False
        for group in groups:
            members = self._members.get(group, {})
            for rollout_id in [*members] if len(members) <= 2 else [next(reversed(members))]:
                heading = self._headings[rollout_id]
                ready = all(self._is_complete(each, comparison=each in heading.comparisons) for each in heading.lessons)
                if ready != (rollout_id in self._ready):
                    changed = True
                    if ready:
                        self._ready[rollout_id] = None
                    else:
                        del self._ready[rollout_id]
        return changed

    def candidates(self, most: int) -> list[str]:
        """Return sessions that are ready, about `most`, each with those that it has to be learnt from together."""
        found: dict[str, None] = {}
        for rollout_id in self._ready:
            if len(found) >= most:
                break
            found[rollout_id] = None
            heading = self._headings[rollout_id]
            for group in heading.lessons:
                if group in heading.comparisons:
                    found |= self._members[group]
                elif self._baselines.expected(group, []) is None:
                    found |= dict.fromkeys(islice(self._members[group], 2))
        return list(found)

    def overdue(self, version: int, max_age: int, now: float) -> list[str]:
        """Return sessions that may have to be left out: answered by weights too old, or, once all are read, alone in a
        comparison for too long. Each comes with all that it is compared with, and is named once."""
        found: dict[str, None] = {}
        while self._by_age and version - self._by_age[0][0] > max_age:
            oldest, rollout_id = heapq.heappop(self._by_age)
            heading = self._headings.get(rollout_id)
            if heading is not None and heading.oldest_version == oldest:
                found[rollout_id] = None
        while self.all_read and self._alone_until and self._alone_until[0][0] < now:
            _, rollout_id = heapq.heappop(self._alone_until)
            heading = self._headings.get(rollout_id)
            if heading is not None and any(self._lessons[group] < 2 for group in heading.comparisons):
                found[rollout_id] = None
        for rollout_id in list(found):
            for group in self._headings[rollout_id].comparisons:
                found |= self._members[group]
        return list(found)

    def seek_the_others(self) -> None:
        """Have the sessions of an owner read again where one of them is alone in a comparison, once for each: what it
        is compared with may have been judged, and read, before."""
        alone = {group for group in self._new_comparisons if self._lessons.get(group) == 1}
        owners = {self._headings[rollout_id].owner for group in alone for rollout_id in self._members[group]}
        self._new_comparisons.clear()
        if len(self._sought) > _MOST_SOUGHT:
            self._sought.clear()
        self._sought |= alone
        if not owners:
            return
        for rollout_id, heading in list(self._headings.items()):
            if heading.owner in owners:
                self.forget(rollout_id)
                self.note(rollout_id, heading.judged_at)

    def _is_complete(self, group: str, *, comparison: bool) -> bool:
        """Return True if a session of a group has something beside it, or before it."""
        several = self._lessons[group] > 1
        return several or (not comparison and self._baselines.expected(group, []) is not None)


# The lessons that are complete, and their advantages.


@dataclass
class SessionChoice:
    """Sessions of the next step."""

    taken: list[JudgedSession] = field(default_factory=list)
    skipped: dict[tuple[str, str], str] = field(default_factory=dict)
    """Reasons for which sessions are left out for good, by the ids of their rollouts and attempts."""


def choose(sessions: Sequence[JudgedSession], baselines: Baselines, most: int) -> SessionChoice:
    """Choose the sessions of which every lesson has something to be compared with, `most` at most.

    A comparison is taken whole, whatever `most` says, and a session of a new key is not taken alone. What else has
    nothing beside it waits.
    """
    choice = SessionChoice()
    groups: dict[str, list[Lesson]] = {}
    for session in sessions:
        if session.why_not is not None:
            choice.skipped[_ids(session.record)] = session.why_not
        for lesson in session.lessons:
            groups.setdefault(lesson.group, []).append(lesson)
    complete: dict[str, bool] = {}
    for name, lessons in groups.items():
        alone = len(lessons) < 2
        complete[name] = not alone or (lessons[0].comparison is None and baselines.expected(name, []) is not None)
        if alone and lessons[0].comparison is not None and not is_recent(lessons[0]):
            choice.skipped[_ids(lessons[0].record)] = "what it was compared with is gone"
    begun: set[str] = set()
    of_new_keys: Counter[str] = Counter()
    for session in sessions:
        names = {lesson.group for lesson in session.lessons}
        if _ids(session.record) in choice.skipped or not names or not all(complete[name] for name in names):
            continue
        if len(choice.taken) < most or begun & names or any(of_new_keys[name] == 1 for name in names):
            choice.taken.append(session)
            begun |= {lesson.group for lesson in session.lessons if lesson.comparison is not None}
            by_themselves = (lesson.group for lesson in session.lessons if lesson.comparison is None)
            of_new_keys.update(name for name in by_themselves if baselines.expected(name, []) is None)
    return choice


def advantages(lessons: Sequence[Lesson], baselines: Baselines) -> list[tuple[Lesson, float]]:
    """Return each lesson with its advantage; see `baselines`. One that lost what it was compared with has none."""
    groups: dict[str, list[Lesson]] = {}
    for lesson in lessons:
        groups.setdefault(lesson.group, []).append(lesson)
    deviation = baselines.deviation([lesson.value for lesson in lessons if lesson.comparison is None])
    found: list[tuple[Lesson, float]] = []
    for name, of_group in groups.items():
        values = [lesson.value for lesson in of_group]
        if of_group[0].comparison is not None:
            compared = group_normalized(np.array(values, np.float64))
            found += [(lesson, float(value)) for lesson, value in zip(of_group, compared, strict=True)]
            continue
        for index, lesson in enumerate(of_group):
            expected = baselines.expected(name, [*values[:index], *values[index + 1 :]])
            if expected is not None:
                found.append((lesson, (lesson.value - expected) / (deviation + EPSILON)))
    return found


def attempts_of(sessions: Collection[JudgedSession]) -> list[tuple[str, str]]:
    """Return the ids of the rollouts of sessions and of their attempts: a session that is opened again under the id of
    one that was deleted has its rollout's id, and another attempt."""
    return [_ids(session.record) for session in sessions]


def _ids(record: SessionRecord) -> tuple[str, str]:
    return record.rollout_id, record.attempt_id
