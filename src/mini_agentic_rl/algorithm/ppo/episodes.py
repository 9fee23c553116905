"""A batch as PPO sees it: trajectories as rows of trained tokens, each with what it earned.

All trajectories are kept, whatever their group: a critic, and not the group, says what was to be expected. Terms stand
trajectory after trajectory and in each in the order in which they were sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...tokens import CompletionRecord, PackedTrees, TokenTree, pack
from ..loop.credit import turn_numbers
from ..loop.groups import Group, Trajectory
from ..loop.shaping import overlong_penalty
from ..losses.base import Floats, Ints
from .settings import PPOSettings


@dataclass(frozen=True)
class CriticEpisodes:
    """The trajectories of one update; S terms in all."""

    trajectories: Sequence[Trajectory]
    packed: PackedTrees
    """All of them in one tree: their tasks begin with the same system prompt."""
    lengths: Sequence[int]
    """Terms of each trajectory."""
    rewards_S: Floats
    """Reward of each term."""

    def part(self, chosen: Sequence[int]) -> tuple[PackedTrees, Ints]:
        """Return some trajectories packed by themselves, and the places of their terms among all."""
        starts = np.concatenate([[0], np.cumsum(self.lengths)])
        terms = np.concatenate([np.arange(starts[n], starts[n + 1]) for n in chosen])
        return _pack([self.trajectories[n] for n in chosen]), terms

    def terms_of_records(self) -> Iterator[tuple[CompletionRecord, slice]]:
        """Yield each trained LLM call with the places of its terms among all."""
        start = 0
        for trajectory in self.trajectories:
            for record, column in zip(trajectory.records, trajectory.credited.column_R, strict=True):
                if column >= 0:
                    yield record, slice(start, start + record.trained_tokens)
                    start += record.trained_tokens


def read_episodes(groups: Sequence[Group], settings: PPOSettings) -> CriticEpisodes | None:
    """Return the trajectories of `groups` that have trained tokens, each with its rewards; None when there is none."""
    usable = [
        trajectory
        for group in groups
        for trajectory in group.trajectories
        if trajectory.trained_tokens > 0 and not (settings.mask_truncated and trajectory.truncated)
    ]
    if not usable:
        return None
    return CriticEpisodes(
        usable,
        _pack(usable),
        [trajectory.trained_tokens for trajectory in usable],
        np.concatenate([_rewards(trajectory, settings) for trajectory in usable]),
    )


def _rewards(trajectory: Trajectory, settings: PPOSettings) -> Floats:
    rewards_L = token_rewards(trajectory, per_turn=settings.credit == "per_turn")
    if settings.overlong_buffer > 0:
        punishment = overlong_penalty(trajectory, settings.max_new_tokens, settings.overlong_buffer)
        rewards_L[-1] += settings.overlong_penalty * punishment
    return rewards_L


def token_rewards(trajectory: Trajectory, *, per_turn: bool) -> Floats:
    """Return the reward of each trained token of a trajectory, at the token that ended what was rewarded.

    The final reward stands at the last token. With `per_turn`, what was emitted after a call stands at the last token
    of that call, and the reward of the rollout as a whole (see `grpo.credit`) at the last token of all. A call without
    a trained token passes its reward to the token before it, or to the first one.
    """
    columns = trajectory.credited.column_R
    sizes = [record.trained_tokens if c >= 0 else 0 for record, c in zip(trajectory.records, columns, strict=True)]
    ends_R = np.cumsum(sizes)
    rewards_L = np.zeros(int(ends_R[-1]), np.float64)
    if not per_turn or trajectory.rewards is None:
        rewards_L[-1] = trajectory.reward
        return rewards_L
    turns_R = turn_numbers(trajectory.records)
    for turn, reward in enumerate(trajectory.rewards.turns_T):
        end = int(ends_R[np.flatnonzero(turns_R == turn)[-1]])
        rewards_L[max(0, end - 1)] += reward
    rewards_L[-1] += trajectory.rewards.whole
    return rewards_L


def minibatches(count: int, parts: int, seed: int) -> Iterator[list[int]]:
    """Yield the numbers 0 ... count - 1 in a random order that `seed` fixes, in at most `parts` parts of about one
    size."""
    order = np.random.default_rng(seed).permutation(count)
    for part in np.array_split(order, min(parts, count)):
        yield sorted(int(index) for index in part)


def _pack(trajectories: Sequence[Trajectory]) -> PackedTrees:
    tree = TokenTree()
    for number, trajectory in enumerate(trajectories):
        for record, column in zip(trajectory.records, trajectory.credited.column_R, strict=True):
            if column >= 0:
                tree.insert(record, number)
    return pack([tree])
