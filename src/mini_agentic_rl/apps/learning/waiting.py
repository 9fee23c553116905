"""Judged sessions that wait to be learnt from: their lessons, baselines, and the choice of the next step's sessions."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ...adapter import TrainedCalls, is_completion
from ...algorithm.advantages import EPSILON, group_normalized
from ...algorithm.losses import Floats
from ...tokens import GREEDY_BELOW, CompletionRecord
from ...types import Span
from .record import Answer, SessionRecord, SessionReward, answer_of, latest_rewards

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
    judged_at: float
    """End of its rollout, seconds since the epoch."""
    lessons: Sequence[Lesson] = ()
    oldest_version: int = 0
    """Version of the policy that answered the oldest call."""
    why_not: str | None = None


def read_session(
    record: SessionRecord, judged_at: float, spans: Sequence[Span], trained: TrainedCalls
) -> JudgedSession:
    """Return the lessons of a session.

    Args:
        judged_at: end of its rollout.
        spans: all of the session.
        trained: which calls are the policy's.
    """
    rewards = latest_rewards(spans)
    outcomes = [_lesson(record, spans, reward, rewards, trained) for reward in rewards.values()]
    lessons = [outcome for outcome in outcomes if isinstance(outcome, Lesson)]
    if not lessons:
        reasons = [outcome for outcome in outcomes if isinstance(outcome, str)]
        return JudgedSession(record, judged_at, why_not=reasons[0] if reasons else "it has no reward")
    return JudgedSession(record, judged_at, lessons, min(call.version for lesson in lessons for call in lesson.records))


def _lesson(
    record: SessionRecord,
    spans: Sequence[Span],
    reward: SessionReward,
    rewards: Mapping[Answer | None, SessionReward],
    trained: TrainedCalls,
) -> Lesson | str:
    """Return the lesson of a reward, or why there is none. An answer with a reward of its own is no part of the
    session's; a reward is for the calls before it."""
    judged_at = next((s.start_time or 0.0 for s in spans if s.sequence_id == reward.sequence_id), 0.0)
    rewarded = [
        span
        for span in spans
        if span.sequence_id < reward.sequence_id
        and (not is_completion(span) or reward.answer == (answer if (answer := answer_of(span)) in rewards else None))
    ]
    selection = trained.select(rewarded)
    records = [call for call in selection.records if call.temperature >= GREEDY_BELOW]
    if records:
        return Lesson(record, reward.value, reward.comparison, records, judged_at)
    if selection.records:
        return "all its calls were at temperature 0, where nothing was tried that could be learnt"
    return selection.why_empty or "it has no call before its reward"


# Baselines of absolute rewards, which are those without a comparison.
#
# Let r_1 … r_G be the rewards of the sessions of one key in a step, m the running mean of the rewards of that key
# before the step, and n the weight of that memory, at most N. The baseline of r_i does not depend on r_i, so the policy
# gradient stays unbiased (as with RLOO; Kool et al. 2019):
#
#     b_i = (n m + sum over j != i of r_j) / (n + G - 1)        A_i = (r_i - b_i) / s
#
# where s is the running standard deviation of rewards over all keys. A single session is compared with earlier rewards
# of its key (G = 1: the running baseline of REINFORCE; Williams 1992), and sessions of a new key with each other
# (n = 0). A single session of a new key waits. Scores of a comparison are normalized within it, (r - mean) / std, as in
# GRPO.


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


class WaitingSessions:
    """Judged sessions that wait to be learnt from, by the ids of their rollouts.

    A session is read from the store when it has been judged, and again when it is learnt from; in between it is kept
    without its calls.
    """

    def __init__(self) -> None:
        self.unread: dict[str, float] = {}
        """Times at which the sessions that were not read yet were judged."""
        self.read: dict[str, JudgedSession] = {}
        self._sought: set[str] = set()
        """Comparisons whose other sessions were sought by `seek_others`."""

    def __len__(self) -> int:
        return len(self.unread) + len(self.read)

    def since(self) -> float | None:
        """Return when the session that has waited longest was judged; None if none waits."""
        return min([*self.unread.values(), *(session.judged_at for session in self.read.values())], default=None)

    def note(self, rollout_id: str, judged_at: float) -> None:
        """Remember a session that has been judged; it is read later."""
        if rollout_id not in self.read:
            self.unread.setdefault(rollout_id, judged_at)

    def keep(self, session: JudgedSession) -> bool:
        """Store a session without the tokens of its calls, which are many; return True if it has changed."""
        rollout_id = session.record.rollout_id
        kept = replace(session, lessons=[replace(lesson, records=()) for lesson in session.lessons])
        changed = self.read.get(rollout_id) != kept
        self.unread.pop(rollout_id, None)
        self.read[rollout_id] = kept
        return changed

    def forget(self, rollout_id: str) -> None:
        """Forget a session."""
        self.unread.pop(rollout_id, None)
        self.read.pop(rollout_id, None)

    def seek_others(self) -> None:
        """Have all sessions of an owner read again if one of them is alone in a comparison, once for each comparison:
        the others may have been read before they were compared."""
        sizes = Counter(lesson.comparison for session in self.read.values() for lesson in session.lessons)
        del sizes[None]
        alone = {comparison for comparison, size in sizes.items() if comparison and size == 1} - self._sought
        self._sought = (self._sought & sizes.keys()) | alone
        owners = {
            session.record.owner
            for session in self.read.values()
            if any(lesson.comparison in alone for lesson in session.lessons)
        }
        for rollout_id, session in list(self.read.items()):
            if session.record.owner in owners:
                self.unread[rollout_id] = self.read.pop(rollout_id).judged_at


def choose(
    sessions: Iterable[JudgedSession],
    baselines: Baselines,
    most: int,
    *,
    version: int = 0,
    max_age: int = 0,
    all_read: bool = True,
) -> tuple[list[JudgedSession], dict[tuple[str, str], str]]:
    """Choose up to `most` sessions whose every lesson can be compared, in the order in which they were judged.

    A comparison is taken whole, whatever `most` says, and a session of a new key is not taken alone. The others wait.

    Args:
        version: of the policy now.
        max_age: versions that the oldest call of a session may be behind; older sessions are skipped.
        all_read: no session waits to be read, so that one alone in a comparison will stay alone.

    Returns:
        The chosen sessions, and the reasons for which others are skipped for good, by rollout and attempt id.
    """
    taken: list[JudgedSession] = []
    skipped: dict[tuple[str, str], str] = {}
    usable: list[JudgedSession] = []
    groups: dict[str, list[Lesson]] = {}
    for session in sorted(sessions, key=lambda session: session.judged_at):
        age = version - session.oldest_version
        if session.why_not is not None:
            skipped[session.record.ids] = session.why_not
        elif age > max_age:
            skipped[session.record.ids] = f"the weights that answered are {age} versions old ({max_age=})"
        else:
            usable.append(session)
            for lesson in session.lessons:
                groups.setdefault(lesson.group, []).append(lesson)
    ready: set[str] = set()
    for name, (first, *others) in groups.items():
        if others or (first.comparison is None and name in baselines):
            ready.add(name)
        elif first.comparison is not None and all_read and time.time() - first.judged_at >= GRACE_SECONDS:
            skipped[first.record.ids] = "what it was compared with is gone"
    begun: set[str] = set()
    of_new_keys: Counter[str] = Counter()
    for session in usable:
        names = {lesson.group for lesson in session.lessons}
        if session.record.ids in skipped or not names <= ready:
            continue
        if len(taken) < most or begun & names or any(of_new_keys[name] == 1 for name in names):
            taken.append(session)
            begun |= {lesson.group for lesson in session.lessons if lesson.comparison is not None}
            alone = (lesson.group for lesson in session.lessons if lesson.comparison is None)
            of_new_keys.update(name for name in alone if name not in baselines)
    return taken, skipped


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
