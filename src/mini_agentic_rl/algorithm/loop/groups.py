"""From finished rollouts to groups: the trajectories of a task, and the rewards that each LLM call is trained with.

For a rollout with trained calls t = 0 ... T-1, the choices of one response being one call:

    r_t   sum of the rewards emitted after call t and before call t+1 (after the last call: until the end)
    R     the last reward of the rollout as a whole: what the agent or a hook returned (`final=True`), 0 if nobody did
    L     the last reward of all, whoever gave it: the final reward that is reported

    broadcast    every call gets L
    last_call    the last call gets L, the others are not trained
    per_turn     call t gets r_t + R
    discounted   call t gets its return G_t = sum_{k >= t} gamma^(k-t) r_k + gamma^(T-1-t) R

Of a reward of several dimensions the primary one counts. Rewards before the first call belong to no call. Calls that
are not trained (another agent's, another model's) are part of the environment: a reward emitted after them belongs to
the last trained call before. A number that is both emitted and returned counts twice in `per_turn` and `discounted`.
Within a group, a number is compared with those of the same turn (`stack`).

Where several adapters are trained, each learns from its own calls, and to it the others are part of the environment. A
reward counts for all of them, unless it names its adapter (`Recipient`).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...emitter import get_reward_value, get_rewards_from_span, is_rollout_reward
from ...logging import CountedCauses
from ...semconv import AGL_ANNOTATION
from ...tokens import CompletionRecord
from ...types import Span
from ..losses import Floats, Ints
from ..rollouts import FinishedRollout
from ..settings import CreditMode, LoopSettings

logger = logging.getLogger(__name__)

_FEEDBACK = "feedback"
"""Name of the annotation by which an agent, or a hook, comments a rollout in words:
`emit_annotation({"feedback": "..."})`."""


@dataclass(frozen=True)
class Credit:
    """Worth of the calls of one rollout."""

    values_C: Floats
    """The numbers that are compared with those of the group's other rollouts, column by column."""
    column_R: Ints
    """For each record the column whose number it is trained with; -1 leaves it untrained."""


@dataclass(frozen=True)
class Rewards:
    """The rewards of one rollout, as its spans have them."""

    turns_T: Floats
    """r_t for each call."""
    whole: float
    """R."""
    last: float
    """L."""


@dataclass(frozen=True)
class Recipient:
    """One of several adapters that are trained, as rewards name it."""

    name: str
    others: Collection[str]
    """Names of the other adapters."""

    def value(self, span: Span) -> float | None:
        """Return the number of a reward span that is this adapter's: the one under its name, else the primary one,
        unless that is under another adapter's name. None for a span that has none."""
        rewards = get_rewards_from_span(span)
        own = next((reward.value for reward in rewards if reward.name == self.name), None)
        if own is None and not (rewards and rewards[0].name in self.others):
            return get_reward_value(span)
        return own

    def last(self, spans: Sequence[Span]) -> float | None:
        """Return its last reward of all; None when nobody gave it one."""
        return next((value for span in reversed(spans) if (value := self.value(span)) is not None), None)


@dataclass(frozen=True)
class Trajectory:
    """The samples of one rollout, and what they were worth."""

    rollout_id: str
    records: Sequence[CompletionRecord]
    reward: float
    """Its final reward."""
    credit: Credit | None = None
    """Number that each record is trained with; None trains all with the final reward."""
    rewards: Rewards | None = None
    """The rewards that `credit` was made of, for an algorithm that spreads them over time itself; None where only the
    final one is known."""
    dimensions: Mapping[str, float] = field(default_factory=dict)
    """The final reward by its names, where it has several."""
    feedback: str = ""
    """Last annotation `feedback` of its attempt, in words; empty when nothing was said."""

    @property
    def credited(self) -> Credit:
        """`credit`, or the final reward for every record where there is none."""
        return broadcast(self.records, self.reward) if self.credit is None else self.credit

    @property
    def sampled_tokens(self) -> int:
        """All that its calls sampled, forced tokens included."""
        return sum(record.output_ids.size for record in self.records)

    @property
    def trained_tokens(self) -> int:
        """Sampled tokens of the records that the credit reaches, without the forced ones."""
        columns = self.credited.column_R
        return sum(record.trained_tokens for record, c in zip(self.records, columns, strict=True) if c >= 0)

    @property
    def truncated(self) -> bool:
        """True if its last call ended at a length bound."""
        return bool(self.records) and self.records[-1].finish_reason == "length"


@dataclass(frozen=True)
class Group:
    """The rollouts of one task."""

    task_id: str
    trajectories: Sequence[Trajectory]
    is_prefixed: bool = False
    """True if its rollouts began with the calls of an expert, so that their rewards are not the policy's alone."""

    @property
    def rewards(self) -> Floats:
        """Final rewards [G]."""
        return np.array([trajectory.reward for trajectory in self.trajectories], np.float64)

    @property
    def credits(self) -> Floats:
        """Numbers that are compared within the group: [G], or [G, C] where single calls have rewards of their own."""
        if not self.trajectories:
            return np.empty(0, np.float64)
        return stack([trajectory.credited for trajectory in self.trajectories])


def turn_numbers(records: Sequence[CompletionRecord]) -> Ints:
    """Return the number [records] of the call that each record belongs to: choices of one response share it."""
    numbers: list[int] = []
    for index, record in enumerate(records):
        same = index > 0 and record.response_id != "" and record.response_id == records[index - 1].response_id
        numbers.append(numbers[-1] + (not same) if numbers else 0)
    return np.array(numbers, np.int64)


def read_rewards(
    spans: Sequence[Span], records: Sequence[CompletionRecord], last: float, recipient: Recipient | None = None
) -> Rewards:
    """Return the rewards among `spans` (one attempt's, in the order of the store), by the call that each belongs to.

    Args:
        records: the calls that are trained, in order.
        last: L.
        recipient: whose rewards count; None takes all.
    """
    turns = turn_numbers(records)
    begins = np.array([record.sequence_id for record in records], np.int64)
    turns_T = np.zeros(int(turns[-1]) + 1 if turns.size else 0, np.float64)
    whole = 0.0
    for span in spans:
        value = get_reward_value(span) if recipient is None else recipient.value(span)
        if value is None:
            continue
        before = int(np.searchsorted(begins, span.sequence_id))
        if is_rollout_reward(span):
            whole = value
        elif before > 0:
            turns_T[turns[before - 1]] += value
    return Rewards(turns_T, whole, last)


def broadcast(records: Sequence[CompletionRecord], reward: float) -> Credit:
    """Return the credit under which every call is worth the same."""
    return Credit(np.array([reward], np.float64), np.zeros(len(records), np.int64))


def assign(mode: CreditMode, records: Sequence[CompletionRecord], rewards: Rewards, *, discount: float = 1.0) -> Credit:
    """Return the credit of a rollout's calls under `mode`; `discount` is the gamma of "discounted"."""
    if mode == "broadcast":
        return broadcast(records, rewards.last)
    turns = turn_numbers(records)
    if mode == "last_call":
        last = turns.max(initial=0)
        return Credit(np.array([rewards.last], np.float64), np.where(turns == last, 0, -1))
    if mode == "per_turn":
        return Credit(rewards.turns_T + rewards.whole, turns)
    return Credit(returns(rewards.turns_T, rewards.whole, discount), turns)


def returns(turns_T: Floats, whole: float, discount: float) -> Floats:
    """Return the discounted sum of the rewards from each call on; `whole` comes with the last call."""
    returns_T = np.zeros_like(turns_T)
    to_come = whole
    for turn in range(turns_T.size - 1, -1, -1):
        to_come = turns_T[turn] + (to_come if turn == turns_T.size - 1 else discount * to_come)
        returns_T[turn] = to_come
    return returns_T


def stack(credits: Sequence[Credit]) -> Floats:
    """Return the numbers of a group's G rollouts side by side: [G] where each has one, else [G, C].

    A rollout that ended before a turn has its last number there. So every rollout counts once in the mean of each turn,
    however many calls it made; a late turn that only one rollout has reached is compared with how the others ended; and
    where all numbers of a rollout are the same, its advantage is exactly that of "broadcast".
    """
    width = max(credit.values_C.size for credit in credits)
    rows = [np.concatenate([c.values_C, np.repeat(c.values_C[-1:], width - c.values_C.size)]) for c in credits]
    matrix = np.stack(rows)
    return np.asarray(matrix[:, 0] if width == 1 else matrix)


def has_signal(rewards: Floats) -> bool:
    """Return True if the rewards of a group differ; equal ones carry no gradient."""
    return rewards.shape[0] > 1 and bool(np.any(np.ptp(rewards, axis=0) > 0))


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return metrics about what was sampled, without rollouts that began with the calls of an expert."""
    groups = [group for group in groups if not group.is_prefixed]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    metrics = {
        "groups/count": float(len(groups)),
        "groups/with_signal": float(sum(has_signal(group.credits) for group in groups)),
    }
    if trajectories:
        metrics |= reward_metrics([t.reward for t in trajectories], [t.dimensions for t in trajectories])
        metrics |= {
            "rollout/sampled_tokens": float(np.mean([t.sampled_tokens for t in trajectories])),
            "rollout/calls": float(np.mean([len(t.records) for t in trajectories])),
            "rollout/truncated": float(np.mean([t.truncated for t in trajectories])),
        }
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def reward_metrics(rewards: Sequence[float], dimensions: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return metrics about the final rewards of some rollouts, and the mean of each name of those with several."""
    if not rewards:
        return {}
    by_name: dict[str, list[float]] = {}
    for named in dimensions:
        if len(named) > 1:
            for name, value in named.items():
                by_name.setdefault(name, []).append(value)
    metrics = {"reward/mean": float(np.mean(rewards)), "reward/std": float(np.std(rewards))}
    return metrics | {f"reward/{name}/mean": float(np.mean(values)) for name, values in by_name.items()}


def by_adapter(
    finished: Sequence[FinishedRollout],
    step: int,
    models: Mapping[str, str],
    settings: LoopSettings,
    causes: CountedCauses,
) -> tuple[dict[str, list[Group]], Counter[str], dict[str, float]]:
    """Return the groups of each adapter by its name; with several adapters also the reasons for which rollouts do not
    train one, and metrics about the rewards of all and the calls of each.

    With several adapters, each sees the same rollouts with its own calls and its own rewards. A rollout that made no
    call to an adapter is in none of its groups.

    Args:
        finished: the rollouts of step number `step`, group by group.
        models: adapter that learns from calls to each model, by the names of the models.
        causes: reasons for which rollouts of the run were not trained so far; only new ones are logged.
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
    comments = (span.attributes.get(_FEEDBACK) for span in reversed(spans) if span.name == AGL_ANNOTATION)
    return next((text for text in comments if isinstance(text, str)), "")
