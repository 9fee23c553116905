"""Rollouts of a step as each adapter learns from them: groups of its own, by task.

They are the same rollouts, each with the calls that were made to the adapter and the rewards that are the adapter's. A
rollout that made no call to it is in none of its groups. Where one adapter is trained, all is its own.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...logging import CountedCauses
from ...semconv import AGL_ANNOTATION
from ...types import Span
from ..rollouts import FinishedRollout
from .credit import Recipient, assign, read_rewards
from .groups import Group, Trajectory, reward_metrics
from .settings import LoopSettings

logger = logging.getLogger(__name__)

_FEEDBACK = "feedback"
"""Name of the annotation by which an agent, or a hook, says in words what a rollout was worth:
`emit_annotation({"feedback": "..."})`."""


def by_adapter(
    finished: Sequence[FinishedRollout],
    step: int,
    models: Mapping[str, str],
    settings: LoopSettings,
    causes: CountedCauses,
) -> tuple[dict[str, list[Group]], Counter[str], dict[str, float]]:
    """Return the groups of each adapter by its name; for several adapters also why rollouts that were to train one do
    not, and metrics about the rewards of all and about the calls of each.

    Args:
        finished: the rollouts of step number `step`, group by group.
        models: the adapter that learns from calls to each model, by the names of the models.
        causes: why rollouts of the run were not trained so far; only new ones are logged.
    """
    adapters = list(dict.fromkeys(models.values()))
    if len(adapters) == 1:
        return {adapters[0]: _groups(finished, step, settings)}, Counter(), {}
    groups: dict[str, list[Group]] = {}
    reasons: Counter[str] = Counter()
    usable = [f for f in finished if f.untrainable is None]
    metrics = reward_metrics(
        [f.reward or 0.0 for f in usable], [{} if f.counts_as_zero else f.dimensions for f in usable]
    )
    for adapter in adapters:
        recipient = Recipient(adapter, [other for other in adapters if other != adapter])
        seen = [_seen_by(f, recipient, models) for f in finished]
        groups[adapter] = _groups(seen, step, settings, recipient)
        metrics[f"{adapter}/rollout/without_calls"] = float(sum(not own.records for own in seen))
        trainable = [own for own, whole in zip(seen, finished, strict=True) if whole.untrainable is None]
        unrewarded = sum(bool(own.records) and own.reward is None for own in trainable)
        if unrewarded:
            reason = f"no reward for {adapter!r}: all were given to other adapters by name"
            if causes.add(reason, unrewarded):
                logger.warning("%d of %d rollouts not trained: %s", unrewarded, len(finished), reason)
            reasons[reason] = unrewarded
    return groups, reasons, metrics


def _seen_by(finished: FinishedRollout, recipient: Recipient, models: Mapping[str, str]) -> FinishedRollout:
    """Return a rollout as one adapter sees it: its own calls, its own reward."""
    records = [record for record in finished.records if models[record.model] == recipient.name]
    return replace(
        finished,
        records=records,
        reward=finished.reward if finished.counts_as_zero else recipient.last(finished.spans),
    )


def _groups(
    finished: Sequence[FinishedRollout], step: int, settings: LoopSettings, recipient: Recipient | None = None
) -> list[Group]:
    """Return one group a task, with the rollouts that can be trained."""
    size = settings.samples_per_prompt
    groups = []
    for index in range(len(finished) // size):
        usable = [f for f in finished[index * size : (index + 1) * size] if f.untrainable is None]
        trajectories = [_trajectory(f, f.reward, settings, recipient) for f in usable if f.reward is not None]
        groups.append(Group(f"{step}/{index}", trajectories))
    return groups


def _trajectory(
    finished: FinishedRollout, reward: float, settings: LoopSettings, recipient: Recipient | None
) -> Trajectory:
    records = finished.records
    # A failed rollout's own rewards, those of its turns too, count for nothing.
    rewards = read_rewards(() if finished.counts_as_zero else finished.spans, records, reward, recipient)
    return Trajectory(
        finished.rollout.rollout_id,
        records,
        reward,
        credit=assign(settings.credit, records, rewards, discount=settings.credit_discount),
        rewards=rewards,
        dimensions={} if finished.counts_as_zero or recipient is not None else finished.dimensions,
        feedback=_last_feedback(finished.spans),
    )


def _last_feedback(spans: Sequence[Span]) -> str:
    """Return the last feedback among the spans of an attempt; empty when there is none."""
    found = (span.attributes.get(_FEEDBACK) for span in reversed(spans) if span.name == AGL_ANNOTATION)
    return next((text for text in found if isinstance(text, str)), "")
