"""The lessons that are complete, and their advantages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...algorithm.advantages import EPSILON, group_normalized
from . import SessionRecord
from .baselines import Baselines
from .lessons import JudgedSession, Lesson, is_recent


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
