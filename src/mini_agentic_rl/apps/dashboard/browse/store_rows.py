"""Lines of rollouts made of the objects of a store, and the tests of a filter on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from ....store import body_json
from ....types import AttemptedRollout, Rollout, Span
from .base import GROUP_KEY, RolloutFilter, RolloutRow, preview_of, reason_of, rl_step, spellings


def texts_of(rollout: Rollout) -> Iterator[str]:
    """Yield the texts in which one is looked for, but those of spans: the id, the task, the metadata."""
    yield rollout.rollout_id
    yield json_text(rollout.input)
    yield json_text(rollout.metadata)
    if isinstance(rollout, AttemptedRollout):
        yield json_text(rollout.attempt.metadata)


def row_of(rollout: Rollout) -> RolloutRow:
    """Return the line of a rollout, without its reward."""
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    metadata = rollout.metadata or {}
    step, group, evaluation = (metadata.get(name) for name in ("step", GROUP_KEY, "evaluation"))
    return RolloutRow(
        number=None,
        id=rollout.rollout_id,
        status=rollout.status,
        mode=rollout.mode,
        start=rollout.start_time,
        end=rollout.end_time,
        task=preview_of(rollout.input),
        attempts=0 if attempt is None else attempt.sequence_id,
        worker=None if attempt is None else attempt.worker_id,
        reward=None,
        group=None if group is None else str(group),
        step=rl_step(step),
        evaluation=None if evaluation is None else str(evaluation),
        why=reason_of(metadata, None if attempt is None else attempt.metadata),
    )


def may_pass(rollout: Rollout, row: RolloutRow, wanted: RolloutFilter) -> bool:
    """Return whether a rollout passes all but what its spans tell."""
    return (
        (not wanted.mode or row["mode"] == wanted.mode)
        and (not wanted.worker or wanted.worker in (row["worker"] or ""))
        and (not wanted.group or wanted.group == row["group"])
        and (wanted.step is None or wanted.step == row["step"])
        and (not wanted.task or stands_in(wanted.task, (json_text(rollout.input),)))
    )


def is_wanted_reward(reward: float | None, wanted: RolloutFilter) -> bool:
    """Return True if there is a reward, within the bounds of a filter."""
    if reward is None:
        return False
    return (wanted.reward_min is None or reward >= wanted.reward_min) and (
        wanted.reward_max is None or reward <= wanted.reward_max
    )


def stands_in(text: str, texts: Iterable[str]) -> bool:
    """Return True if a text stands in one of these, in either spelling that JSON has for it."""
    wanted = spellings(text)
    return any(one in each for each in texts for one in wanted)


def json_text(value: Any) -> str:
    """Return a task or metadata as databases keep them."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def span_text(span: Span) -> str:
    """Return what a text is looked for in of a span."""
    try:
        return body_json(span)
    except ValueError:  # a store in memory takes what is no JSON
        return str(span.attributes)
