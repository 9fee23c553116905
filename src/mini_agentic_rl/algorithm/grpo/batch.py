"""From rollouts to what the learner takes: groups without signal dropped, the rest grown into trees and packed.

Every trajectory counts the same in its group however many calls it made, and every sampled token is one term, with the
advantage of the call that sampled it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mini_agentic_rl.tokens import CompletionRecord, PackedTrees, TokenTree, pack

from .advantage import Advantage, has_signal
from .credit import Credit, broadcast, stack
from .loss import Aggregation, term_weights

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Trajectory:
    """What one rollout sampled, and what it was worth."""

    rollout_id: str
    records: Sequence[CompletionRecord]
    reward: float
    """Its final reward."""
    credit: Credit | None = None
    """What each record is trained with; None trains all with the final reward."""
    dimensions: Mapping[str, float] = field(default_factory=dict)
    """The final reward by its names, where it has several."""

    @property
    def credited(self) -> Credit:
        return broadcast(self.records, self.reward) if self.credit is None else self.credit

    @property
    def sampled_tokens(self) -> int:
        return sum(record.output_ids.size for record in self.records)

    @property
    def trained_tokens(self) -> int:
        """Sampled tokens of the records that the credit reaches."""
        columns = self.credited.column_R
        return sum(record.output_ids.size for record, c in zip(self.records, columns, strict=True) if c >= 0)

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
        """Final rewards [G]."""
        return np.array([trajectory.reward for trajectory in self.trajectories], np.float64)

    @property
    def credits(self) -> npt.NDArray[np.float64]:
        """What is compared within the group: [G], or [G, C] where single calls have rewards of their own."""
        if not self.trajectories:
            return np.empty(0, np.float64)
        return stack([trajectory.credited for trajectory in self.trajectories])


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
    advantages: Sequence[Floats]
    """For each tree, one entry a record, in the order in which they were inserted."""
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
        together: list[int] = []
        size = 0
        for index, tree in enumerate(self.trees):
            if together and size + tree.token_count > max_tokens:
                yield self._micro_batch(together)
                together, size = [], 0
            together.append(index)
            size += tree.token_count
        if together:
            yield self._micro_batch(together)

    def _micro_batch(self, indices: Sequence[int]) -> MicroBatch:
        trees = [self.trees[index] for index in indices]
        packed = pack(trees)
        # A record without a sampled token has no term, and so no number among the calls of the pack.
        has_terms = [sampled.record.output_ids.size > 0 for tree in trees for sampled in tree.sampled]
        of_call = np.concatenate([self.advantages[index] for index in indices])[np.array(has_terms)]
        return MicroBatch(packed, of_call[packed.call_S], self.weights[packed.trajectory_S])


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
        max_tree_tokens: trajectories of all groups share one tree (and so the system prompt that their tasks begin
            with) until it grows beyond this; then the next tree begins, with a prompt of its own.
        mask_truncated: leave trajectories that ended at a length bound out of the loss; they still count for the
            group's mean.
        keep_zero_advantage: keep calls whose advantage is 0 (a KL penalty still acts on them).
    """
    kept: list[_Numbered] = []
    lengths: list[int] = []
    unrolled = 0
    for group in groups:
        credits = group.credits
        if not has_signal(credits):
            continue
        values_GC = advantage(credits).reshape(len(group.trajectories), -1)
        for trajectory, values_C in zip(group.trajectories, values_GC, strict=True):
            if trajectory.trained_tokens == 0 or (mask_truncated and trajectory.truncated):
                continue
            lengths.append(trajectory.trained_tokens)
            calls = [
                (record, float(values_C[column]))
                for record, column in zip(trajectory.records, trajectory.credited.column_R, strict=True)
                if column >= 0 and (values_C[column] != 0 or keep_zero_advantage)
            ]
            if not calls:
                continue
            kept.append((len(lengths) - 1, calls))
            unrolled += _tree([kept[-1]]).token_count
    if not kept:
        return None
    trees, parts = zip(*_trees(kept, max_tree_tokens), strict=True)
    return Batch(
        trees=trees,
        advantages=[np.array([value for _, calls in part for _, value in calls], np.float32) for part in parts],
        weights=term_weights(lengths, aggregation, max_length),
        unrolled_tokens=unrolled,
    )


_Numbered = tuple[int, list[tuple[CompletionRecord, float]]]
"""A trajectory's number, and its records with the advantage of each."""


def _trees(trajectories: Sequence[_Numbered], max_tokens: int) -> Iterator[tuple[TokenTree, Sequence[_Numbered]]]:
    """As few trees as it takes, in order, none above `max_tokens` unless one trajectory alone is; with what is in
    each."""
    tree, start = TokenTree(), 0
    for end, trajectory in enumerate(trajectories):
        _insert(tree, trajectory)
        if tree.token_count > max_tokens and end > start:
            yield _tree(trajectories[start:end]), trajectories[start:end]
            tree, start = _tree(trajectories[end : end + 1]), end
    if start < len(trajectories):
        yield tree, trajectories[start:]


def _tree(trajectories: Sequence[_Numbered]) -> TokenTree:
    tree = TokenTree()
    for trajectory in trajectories:
        _insert(tree, trajectory)
    return tree


def _insert(tree: TokenTree, trajectory: _Numbered) -> None:
    number, calls = trajectory
    for record, _ in calls:
        tree.insert(record, number)
