"""The sessions that wait to be learnt from: what is remembered of each, and which can be compared with something.

Each is read once, and again when its turn has come. A heading is kept of it meanwhile, so that a look at those that
are ready takes no time for those that are not, however many there are.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from .baselines import Baselines
from .lessons import GRACE_SECONDS, JudgedSession

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
