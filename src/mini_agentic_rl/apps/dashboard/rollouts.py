"""Lists of rollouts and groups as the dashboard shows them, read from a store page by page."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

from ...algorithm import UNTRAINED_KEY
from ...store import LightningStore
from ...types import Attempt, AttemptedRollout, Rollout, Span

MAX_SPANS: Final = 2000
"""Spans of a rollout that are read."""
MAX_GROUP: Final = 256
"""Rollouts of a group that are read."""
MAX_RESOURCES: Final = 200
"""Versions of resources that are read."""
MAX_WORKERS: Final = 1000
"""Workers that are read."""
_PREVIEW: Final = 300
"""Characters of a task, or of a reason, that a list shows."""
_SEARCH_SECONDS: Final = 0.025
"""Time after which a search returns what it has found so far."""
_QUESTIONS: Final = ("question", "prompt", "problem", "instruction", "input", "word", "text", "task")


class RolloutRow(TypedDict):
    """One line of the list of rollouts."""

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
    """Final reward of the latest attempt; None if there is none."""
    group: str | None
    step: int | None
    """Training step, from 1."""
    evaluation: str | None
    """Name of the evaluation that it belongs to."""
    why: str | None
    """Reason why it failed, or why it succeeded and gave nothing to train on."""


async def rollout_rows(
    store: LightningStore, conditions: Mapping[str, Any], limit: int, before: int | None = None
) -> tuple[list[RolloutRow], int | None]:
    """Return the newest rollouts that meet the conditions, and the position below which the next page begins.

    A search that takes long returns fewer rows than `limit`, and even none, before the end; at the end the position is
    None.

    Args:
        conditions: Those of `LightningStore.list_rollouts`.
        limit: Most rows.
        before: Position that an earlier page returned.
    """
    rows: list[RolloutRow] = []
    end = time.monotonic() + _SEARCH_SECONDS
    while True:
        page = await store.list_rollouts(**conditions, before=before, limit=limit - len(rows))
        rows += [_row(rollout, reward) for rollout, reward in zip(page.items, page.rewards, strict=True)]
        before = page.next
        if before is None or len(rows) == limit or time.monotonic() > end:
            return rows, before


async def group_rows(
    store: LightningStore, limit: int, before: int | None = None
) -> tuple[list[dict[str, Any]], int | None]:
    """Return the newest groups, and the position below which the next page begins (None at the end)."""
    page = await store.list_groups(before=before, limit=limit)
    rows = [
        {
            "group": group.group,
            "step": None if group.step is None else group.step + 1,
            "count": len(group.rewards),
            "rewards": group.rewards,
            "task": _preview(group.input),
        }
        for group in page.items
    ]
    return rows, page.next


async def spans_of(store: LightningStore, rollout_id: str) -> Sequence[Span]:
    """Return the spans of all attempts of a rollout in the order of the store, at most `MAX_SPANS`."""
    return (await store.query_spans(rollout_id, limit=MAX_SPANS)).items


def latest_spans(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of the attempt of the last span."""
    return [span for span in spans if span.attempt_id == spans[-1].attempt_id]


def reason_of(metadata: Mapping[str, Any], attempt: Attempt | None) -> str | None:
    """Return why a rollout gave nothing, from its metadata and those of its latest attempt."""
    reason = metadata.get(UNTRAINED_KEY) or (None if attempt is None else attempt.metadata.get("error"))
    return None if reason is None else str(reason)


def _row(rollout: Rollout, reward: float | None) -> RolloutRow:
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    metadata = rollout.metadata or {}
    step, group, evaluation = (metadata.get(name) for name in ("step", "group", "evaluation"))
    reason = reason_of(metadata, attempt)
    return RolloutRow(
        id=rollout.rollout_id,
        status=rollout.status,
        mode=rollout.mode,
        start=rollout.start_time,
        end=rollout.end_time,
        task=_preview(rollout.input),
        attempts=0 if attempt is None else attempt.sequence_id,
        worker=None if attempt is None else attempt.worker_id,
        reward=reward,
        group=None if group is None else str(group),
        step=step + 1 if isinstance(step, int) else None,  # metadata have the number of steps finished before
        evaluation=None if evaluation is None else str(evaluation),
        why=None if reason is None else _one_line(reason),
    )


def _preview(task: Any) -> str:
    """Return the beginning of a task on one line: its question if it has one, else its JSON."""
    if isinstance(task, Mapping):
        task = next((task[key] for key in _QUESTIONS if isinstance(task.get(key), str)), task)
    return _one_line(task if isinstance(task, str) else json.dumps(task, ensure_ascii=False, default=str))


def _one_line(text: str) -> str:
    return " ".join(text[: 4 * _PREVIEW].split())[:_PREVIEW]
