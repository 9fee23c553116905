"""From rollouts to what the learner takes: groups without signal dropped, the rest grown into trees and packed.

Every trajectory counts the same in its group however many calls it made, and every sampled token is one term.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mini_agentic_rl.tokens import CompletionRecord, PackedTrees, TokenTree, pack

from .advantage import Advantage, has_signal
from .loss import Aggregation, term_weights

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Trajectory:
    """What one rollout sampled, and what it was worth."""

    rollout_id: str
    records: Sequence[CompletionRecord]
    reward: float

    @property
    def sampled_tokens(self) -> int:
        return sum(record.output_ids.size for record in self.records)

    @property
    def truncated(self) -> bool:
        """Whether its last call ended at a length bound."""
        return bool(self.records) and self.records[-1].finish_reason == "length"


@dataclass(frozen=True)
class Group:
    """The rollouts of one task."""

    task_id: str
    trajectories: Sequence[Trajectory]

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        return np.array([trajectory.reward for trajectory in self.trajectories], np.float64)


@dataclass(frozen=True)
class MicroBatch:
    """One forward-backward pass: packed trees and the streams that the loss needs, all [S]."""

    packed: PackedTrees
    advantages_S: Floats
    weights_S: Floats


@dataclass(frozen=True)
class Batch:
    """All that one optimizer step trains on."""

    trees: Sequence[TokenTree]
    advantages: Floats
    """One entry a trajectory, by its number in the trees."""
    weights: Floats
    """Weight of each of a trajectory's terms, by its number in the trees."""
    unrolled_tokens: int
    """Tokens that training each trajectory's longest call and every diverging one on its own would compute."""

    @property
    def tree_tokens(self) -> int:
        """Tokens that are computed."""
        return sum(tree.token_count for tree in self.trees)

    def micro_batches(self, max_tokens: int) -> Iterator[MicroBatch]:
        """Whole trees together up to `max_tokens`; a single rollout that is longer stands alone."""
        together: list[TokenTree] = []
        for tree in self.trees:
            if together and sum(t.token_count for t in together) + tree.token_count > max_tokens:
                yield self._micro_batch(together)
                together = []
            together.append(tree)
        if together:
            yield self._micro_batch(together)

    def _micro_batch(self, trees: Sequence[TokenTree]) -> MicroBatch:
        packed = pack(trees)
        return MicroBatch(packed, self.advantages[packed.trajectory_S], self.weights[packed.trajectory_S])


def make_batch(
    groups: Sequence[Group],
    advantage: Advantage,
    aggregation: Aggregation,
    *,
    max_length: int,
    max_tree_tokens: int,
    mask_truncated: bool,
    keep_zero_advantage: bool,
) -> Batch | None:
    """The trainable part of `groups`; None when no group carries a signal.

    Args:
        max_length: the most tokens that a trajectory may sample (for `dr_grpo`).
        max_tree_tokens: a group that grows beyond this is cut into several trees, each with the prompt of its own.
        mask_truncated: leave trajectories that ended at a length bound out of the loss; they still count for the
            group's mean.
        keep_zero_advantage: keep trajectories whose advantage is 0 (a KL penalty still acts on them).
    """
    trees: list[TokenTree] = []
    advantages: list[float] = []
    lengths: list[int] = []
    unrolled = 0
    for group in groups:
        if not has_signal(group.rewards):
            continue
        kept: list[tuple[int, Sequence[CompletionRecord]]] = []
        for trajectory, value in zip(group.trajectories, advantage(group.rewards), strict=True):
            if trajectory.sampled_tokens == 0 or (mask_truncated and trajectory.truncated):
                continue
            lengths.append(trajectory.sampled_tokens)
            advantages.append(float(value))
            if value == 0 and not keep_zero_advantage:
                continue
            kept.append((len(advantages) - 1, trajectory.records))
            unrolled += _tree([kept[-1]]).token_count
        trees.extend(_trees(kept, max_tree_tokens))
    if not trees:
        return None
    return Batch(
        trees=trees,
        advantages=np.array(advantages, np.float32),
        weights=term_weights(lengths, aggregation, max_length),
        unrolled_tokens=unrolled,
    )


def _trees(trajectories: Sequence[tuple[int, Sequence[CompletionRecord]]], max_tokens: int) -> Iterator[TokenTree]:
    """As few trees as it takes, in order, none above `max_tokens` unless one trajectory alone is."""
    tree, inside = TokenTree(), 0
    for end, (number, records) in enumerate(trajectories):
        for record in records:
            tree.insert(record, number)
        inside += 1
        if tree.token_count > max_tokens and inside > 1:
            yield _tree(trajectories[end + 1 - inside : end])
            tree, inside = _tree(trajectories[end : end + 1]), 1
    if inside:
        yield tree


def _tree(trajectories: Sequence[tuple[int, Sequence[CompletionRecord]]]) -> TokenTree:
    tree = TokenTree()
    for number, records in trajectories:
        for record in records:
            tree.insert(record, number)
    return tree
