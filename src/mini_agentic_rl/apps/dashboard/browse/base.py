"""The reads that the dashboard makes of a store, whatever keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypedDict

from ....algorithm import UNTRAINED_KEY
from ....types import Attempt, ResourcesUpdate, Rollout, Span, Worker

PREVIEW: Final = 300
"""Characters of a task, or of a reason, that a list shows."""
GROUP_KEY: Final = "group"
"""Key in a rollout's metadata: the group that it was sampled in, as STEP/INDEX."""
_QUESTIONS: Final = ("question", "prompt", "problem", "instruction", "input", "word", "text", "task")


class RolloutRow(TypedDict):
    """One line of the list of rollouts."""

    number: int | None
    """Number in a SQLite file; other stores do not tell theirs."""
    id: str
    status: str
    mode: str | None
    start: float
    end: float | None
    task: str
    """The beginning of the task, on one line."""
    attempts: int
    worker: str | None
    reward: float | None
    """Final reward of the latest attempt; None where nobody gave one."""
    group: str | None
    step: int | None
    """Step of reinforcement learning, from 1."""
    evaluation: str | None
    """Name of the measurement that it belongs to."""
    why: str | None
    """Reason why it failed, or why it succeeded and gave nothing to train on."""


class GroupRow(TypedDict):
    """One line of the list of groups."""

    group: str
    step: int | None
    count: int
    rewards: list[float | None]
    task: str


@dataclass(frozen=True)
class RolloutFilter:
    """Conditions on rollouts; an empty field asks for nothing."""

    status: tuple[str, ...] = ()
    mode: str = ""
    reward_min: float | None = None
    reward_max: float | None = None
    task: str = ""
    """Text within the task."""
    worker: str = ""
    """Text within the name of the worker."""
    text: str = ""
    """Text within the task, the metadata or the spans."""
    group: str = ""
    step: int | None = None


@dataclass(frozen=True)
class RolloutPage:
    """Some rollouts, the newest first."""

    items: Sequence[RolloutRow]
    next: str | None
    """Cursor at which the next page begins; None at the end. A page may hold fewer items than were asked for, and even
    none, before the end: a search stops after a while and is gone on with at `next`."""


class Browser(Protocol):
    """Reads of one store. Nothing here changes it."""

    async def totals(self) -> Mapping[str, Any]:
        """Return the number of rollouts by status, and how much of the store is indexed."""
        ...

    async def page(self, wanted: RolloutFilter, cursor: str | None, limit: int) -> RolloutPage:
        """Return the rollouts that pass, from a cursor on.

        Raises:
            ValueError: no page ends at this cursor.
        """
        ...

    async def rows(self, ids: Sequence[str]) -> Sequence[RolloutRow]:
        """Return the lines of these rollouts, in the order in which they were queued."""
        ...

    async def rollout(self, rollout_id: str) -> Rollout | None:
        """Return a rollout, or None."""
        ...

    async def attempts(self, rollout_id: str) -> Sequence[Attempt]:
        """Return the attempts of a rollout, oldest first."""
        ...

    async def spans(self, rollout_id: str) -> Sequence[Span]:
        """Return the spans of all attempts of a rollout in the order of the store, at most `MAX_SPANS`."""
        ...

    async def groups(self, cursor: str | None, limit: int) -> tuple[Sequence[GroupRow], str | None]:
        """Return groups, the newest first, and where the next ones begin.

        Raises:
            ValueError: no page ends at this cursor.
        """
        ...

    async def group(self, group: str) -> Sequence[str]:
        """Return the ids of the rollouts of a group, at most `MAX_GROUP`."""
        ...

    async def indexed(self, seconds: float) -> bool:
        """Return True once all groups and rewards that the store holds now are known, False after so many seconds."""
        ...

    async def workers(self) -> Sequence[Worker]:
        """Return the workers."""
        ...

    async def resources(self) -> Sequence[ResourcesUpdate]:
        """Return the newest versions of the resources, at most `MAX_RESOURCES`."""
        ...

    async def mark(self) -> str:
        """Return a text that is another one once something was written."""
        ...

    async def close(self) -> None:
        """Release what it holds."""
        ...


MAX_SPANS: Final = 2000
"""Spans of a rollout that are read."""
MAX_GROUP: Final = 256
"""Rollouts of a group that are read."""
MAX_RESOURCES: Final = 200
"""Versions of resources that are read."""


def task_preview(text: str) -> str:
    """Return the beginning of a task on one line, from its JSON, which may be cut off: then the JSON itself."""
    try:
        return preview_of(json.loads(text))
    except (ValueError, RecursionError):
        return one_line(text)


def preview_of(task: Any) -> str:
    """Return the beginning of a task on one line: its question where it has one, else its JSON."""
    if isinstance(task, Mapping):
        task = next((task[key] for key in _QUESTIONS if isinstance(task.get(key), str)), task)
    return one_line(task if isinstance(task, str) else json.dumps(task, ensure_ascii=False, default=str))


def spellings(text: str) -> tuple[str, str]:
    """Return a text as JSON has it, with and without escapes of what is not ASCII: stores keep both."""
    return json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


def rl_step(finished: Any) -> int | None:
    """Return the number of a step of reinforcement learning from 1, as the metrics count; a rollout's metadata have the
    number of those that were finished before it."""
    return finished + 1 if isinstance(finished, int) else None


def one_line(text: str) -> str:
    """Return the beginning of a text without ends of lines."""
    return " ".join(text[: 4 * PREVIEW].split())[:PREVIEW]


def reason_of(metadata: Mapping[str, Any], attempt: Mapping[str, Any] | None) -> str | None:
    """Return why a rollout gave nothing, from its metadata and those of its latest attempt."""
    why = metadata.get(UNTRAINED_KEY) or (attempt or {}).get("error")
    return None if why is None else one_line(str(why))
