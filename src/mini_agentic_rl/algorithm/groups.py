"""From finished rollouts to groups: the trajectories of a task, and the rewards that each LLM call is trained with.

For a rollout with trained calls t = 0 ... T-1, the choices of one response being one call:

    r_t   sum of the rewards emitted after call t and before call t+1 (after the last call: until the end)
    R     the last reward of the rollout as a whole: what the agent or a hook returned (`final=True`), 0 without one
    L     the last reward of all, whoever gave it: the final reward that is reported

    broadcast    every call gets L
    last_call    the last call gets L, the others are not trained
    per_turn     call t gets r_t + R
    discounted   call t gets its return G_t = sum_{k >= t} gamma^(k-t) r_k + gamma^(T-1-t) R

Of a reward of several dimensions the primary one counts. Rewards before the first call belong to no call. Calls that
are not trained (another agent's, another model's) are part of the environment: a reward emitted after them belongs to
the last trained call before. A number that is both emitted and returned counts twice in `per_turn` and `discounted`.
Within a group, a number is compared with those of the same turn (`Group.credits`).

Where several adapters are trained, each learns from its own calls, and to it the others are part of the environment. A
reward counts for all of them, unless it names its adapter (`reward_for`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ..emitter import get_reward_value, get_rewards_from_span, is_rollout_reward
from ..tokens import CompletionRecord
from ..types import Span
from .losses import Floats, Ints
from .rollouts import FinishedRollout
from .settings import CreditMode, LoopSettings

RewardOf = Callable[[Span], float | None]
"""Function from a span to the reward in it; None where it has none."""


@dataclass(frozen=True)
class Trajectory:
    """The calls of one rollout, and the rewards that they are trained with."""

    rollout_id: str
    records: Sequence[CompletionRecord]
    reward: float
    """Its final reward."""
    values_C: Floats = field(default_factory=lambda: np.empty(0))
    """The numbers that are compared with those of the group's other rollouts, column by column [C]; by default the
    final reward alone."""
    column_R: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """For each record the column whose number it is trained with [R]; -1 leaves it untrained. By default all 0."""
    turn_rewards_T: Floats | None = None
    """r_t of each call [T], for an algorithm that spreads rewards over time itself; None where only the final reward is
    known."""
    whole_reward: float = 0.0
    """R."""
    dimensions: Mapping[str, float] = field(default_factory=dict)
    """The final reward by its names, where it has several."""

    def __post_init__(self) -> None:
        if self.values_C.size == 0:
            object.__setattr__(self, "values_C", np.array([self.reward], np.float64))
            object.__setattr__(self, "column_R", np.zeros(len(self.records), np.int64))

    @property
    def credited_records(self) -> list[CompletionRecord]:
        """The records that are trained."""
        return [record for record, column in zip(self.records, self.column_R, strict=True) if column >= 0]

    @property
    def sampled_tokens(self) -> int:
        """Number of all tokens that its calls sampled, forced tokens included."""
        return sum(record.output_ids.size for record in self.records)

    @property
    def trained_tokens(self) -> int:
        """Number of sampled tokens of the records that are trained, without the forced ones."""
        return sum(record.trained_tokens for record in self.credited_records)

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
        """Numbers that are compared within the group: [G], or [G, C] where single calls have rewards of their own.

        A rollout that ended before a turn has its last number there. So every rollout counts once in the mean of each
        turn, however many calls it made; a late turn that only one rollout has reached is compared with how the others
        ended; and where all numbers of a rollout are the same, its advantage is exactly that of "broadcast".
        """
        rows = [trajectory.values_C for trajectory in self.trajectories]
        width = max((values_C.size for values_C in rows), default=0)
        if width <= 1:
            return np.array([values_C[0] for values_C in rows], np.float64)
        return np.stack([np.concatenate([row_C, np.repeat(row_C[-1:], width - row_C.size)]) for row_C in rows])


def turn_numbers(records: Sequence[CompletionRecord]) -> Ints:
    """Return the number [R] of the call that each record belongs to: choices of one response share it."""
    numbers: list[int] = []
    for index, record in enumerate(records):
        same = index > 0 and record.response_id != "" and record.response_id == records[index - 1].response_id
        numbers.append(numbers[-1] + (not same) if numbers else 0)
    return np.array(numbers, np.int64)


def read_rewards(
    spans: Sequence[Span], records: Sequence[CompletionRecord], reward_of: RewardOf = get_reward_value
) -> tuple[Floats, float]:
    """Return r_t of each call [T] and R from the spans of an attempt, in the order of the store.

    Args:
        records: the calls that are trained, in order.
    """
    turns_R = turn_numbers(records)
    begins_R = np.array([record.sequence_id for record in records], np.int64)
    turn_rewards_T = np.zeros(int(turns_R[-1]) + 1 if turns_R.size else 0, np.float64)
    whole = 0.0
    for span in spans:
        value = reward_of(span)
        if value is None:
            continue
        before = int(np.searchsorted(begins_R, span.sequence_id))
        if is_rollout_reward(span):
            whole = value
        elif before > 0:
            turn_rewards_T[turns_R[before - 1]] += value
    return turn_rewards_T, whole


def credit_calls(
    mode: CreditMode,
    records: Sequence[CompletionRecord],
    reward: float,
    turn_rewards_T: Floats,
    whole: float,
    *,
    discount: float = 1.0,
) -> tuple[Floats, Ints]:
    """Return `values_C` and `column_R` of a `Trajectory` under the setting `credit`.

    Args:
        reward: L.
        turn_rewards_T: r_t.
        whole: R.
        discount: gamma of "discounted".
    """
    final_C, turns_R = np.array([reward], np.float64), turn_numbers(records)
    if mode == "broadcast":
        return final_C, np.zeros(len(records), np.int64)
    if mode == "last_call":
        return final_C, np.where(turns_R == turns_R.max(initial=0), 0, -1)
    if mode == "per_turn":
        return turn_rewards_T + whole, turns_R
    returns_T = np.zeros_like(turn_rewards_T)
    to_come = whole  # R comes with the last call, undiscounted
    for turn in range(returns_T.size - 1, -1, -1):
        to_come = turn_rewards_T[turn] + (to_come if turn == returns_T.size - 1 else discount * to_come)
        returns_T[turn] = to_come
    return returns_T, turns_R


def has_signal(rewards: Floats) -> bool:
    """Return True if the rewards of a group differ; equal ones carry no gradient."""
    return rewards.shape[0] > 1 and bool(np.any(np.ptp(rewards, axis=0) > 0))


def group_metrics(groups: Sequence[Group], learns_from: Callable[[Group], bool]) -> dict[str, float]:
    """Return metrics about what was sampled, without rollouts that began with the calls of an expert.

    `learns_from` returns True if the algorithm can learn from a group.
    """
    groups = [group for group in groups if not group.is_prefixed]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    metrics = {
        "groups/count": float(len(groups)),
        "groups/with_signal": float(sum(map(learns_from, groups))),
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


def reward_for(span: Span, adapter: str, adapters: Sequence[str]) -> float | None:
    """Return the reward in a span that counts for one of several adapters: the one under its name, else the primary
    one, unless that is under another adapter's name. None where there is none."""
    rewards = get_rewards_from_span(span)
    named = next((reward.value for reward in rewards if reward.name == adapter), None)
    if named is None and not (rewards and rewards[0].name in adapters):
        return get_reward_value(span)
    return named


def groups_of(
    finished: Sequence[FinishedRollout], step: int, models: Mapping[str, str], settings: LoopSettings
) -> dict[str, list[Group]]:
    """Return the groups of each adapter, by its name: those of the rollouts that called it.

    Args:
        finished: rollouts of step number `step`, `samples_per_prompt` of each task together.
        models: adapter that learns from calls to each model, by the names of the models.
    """
    adapters = list(dict.fromkeys(models.values()))
    if len(adapters) == 1:
        return {adapters[0]: make_groups(finished, step, settings)}
    return {
        adapter: make_groups(
            rollouts_of(adapter, finished, models),
            step,
            settings,
            partial(reward_for, adapter=adapter, adapters=adapters),
        )
        for adapter in adapters
    }


def rollouts_of(adapter: str, finished: Sequence[FinishedRollout], models: Mapping[str, str]) -> list[FinishedRollout]:
    """Return rollouts as one of several adapters sees them: with its own calls and its own reward."""
    adapters = list(models.values())
    seen = []
    for rollout in finished:
        rewards = (reward_for(span, adapter, adapters) for span in reversed(rollout.spans))
        reward = next((value for value in rewards if value is not None), None)
        records = [record for record in rollout.records if models[record.model] == adapter]
        seen.append(replace(rollout, records=records, reward=rollout.reward if rollout.counts_as_zero else reward))
    return seen


def make_groups(
    finished: Sequence[FinishedRollout], step: int, settings: LoopSettings, reward_of: RewardOf | None = None
) -> list[Group]:
    """Return one group for each task, with the rollouts that can be trained.

    Args:
        reward_of: the rewards of one of several adapters; None takes all.
    """
    size = settings.samples_per_prompt
    groups = []
    for index in range(len(finished) // size):
        trajectories = []
        for rollout in finished[index * size : (index + 1) * size]:
            if rollout.untrainable is not None or rollout.reward is None:
                continue
            # The rewards of a failed rollout count for nothing, those of its turns too.
            spans = () if rollout.counts_as_zero else rollout.spans
            turn_rewards_T, whole = read_rewards(spans, rollout.records, reward_of or get_reward_value)
            values_C, column_R = credit_calls(
                settings.credit,
                rollout.records,
                rollout.reward,
                turn_rewards_T,
                whole,
                discount=settings.credit_discount,
            )
            trajectories.append(
                Trajectory(
                    rollout.rollout.rollout_id,
                    rollout.records,
                    rollout.reward,
                    values_C,
                    column_R,
                    turn_rewards_T,
                    whole,
                    dimensions={} if rollout.counts_as_zero or reward_of is not None else rollout.dimensions,
                )
            )
        groups.append(Group(f"{step}/{index}", trajectories))
    return groups
