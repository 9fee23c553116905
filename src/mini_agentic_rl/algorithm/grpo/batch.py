"""From rollouts to what the learner takes: groups without signal dropped, the rest grown into a tree and packed.

Every trajectory counts the same in its group however many calls it made, and every sampled token that was not forced is
one term, with the advantage of the call that sampled it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mini_agentic_rl.tokens import CompletionRecord, PackedTrees, TokenTree, pack

from .advantage import Advantage, has_signal
from .credit import Credit, Rewards, broadcast, stack
from .loss import term_weights
from .settings import Aggregation

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
    rewards: Rewards | None = None
    """The rewards that `credit` was made of, for an algorithm that spreads them over time itself; None where only the
    final one is known."""
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
        """Sampled tokens of the records that the credit reaches, without the forced ones."""
        columns = self.credited.column_R
        return sum(record.trained_tokens for record, c in zip(self.records, columns, strict=True) if c >= 0)

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
class Batch:
    """All that one optimizer step trains on, and the streams that the loss needs."""

    packed: PackedTrees
    advantages_S: Floats
    """Advantage of each term: that of the call which sampled it."""
    weights_S: Floats
    """Weight of each term: the whole normalisation of the loss."""
    unrolled_tokens: int
    """Tokens that training each trajectory's longest call and every diverging one on its own would compute."""


def make_batch(
    groups: Sequence[Group],
    advantage: Advantage,
    aggregation: Aggregation,
    *,
    max_length: int,
    mask_truncated: bool,
    keep_zero_advantage: bool,
    compared: bool = True,
) -> Batch | None:
    """The trainable part of `groups`; None when there is none.

    Args:
        max_length: the most tokens that a trajectory may sample (for `dr_grpo`).
        mask_truncated: leave trajectories that ended at a length bound out of the loss; they still count for the
            group's mean.
        keep_zero_advantage: keep calls whose advantage is 0 (a KL penalty still acts on them).
        compared: leave out groups whose rewards are all equal: compared with each other they say nothing.
    """
    # One tree for all groups: their tasks begin with the same system prompt.
    tree = TokenTree()
    of_call: list[float] = []
    lengths: list[int] = []
    unrolled = 0
    for group in groups:
        credits = group.credits
        if credits.size == 0 or (compared and not has_signal(credits)):
            continue
        values_GC = advantage(credits).reshape(len(group.trajectories), -1)
        for trajectory, values_C in zip(group.trajectories, values_GC, strict=True):
            if trajectory.trained_tokens == 0 or (mask_truncated and trajectory.truncated):
                continue
            lengths.append(trajectory.trained_tokens)
            alone = TokenTree()
            for record, column in zip(trajectory.records, trajectory.credited.column_R, strict=True):
                if column < 0 or (values_C[column] == 0 and not keep_zero_advantage):
                    continue
                tree.insert(record, len(lengths) - 1)
                alone.insert(record)
                if record.trained_tokens:  # a record without one has no term, and no number in the pack
                    of_call.append(float(values_C[column]))
            unrolled += alone.token_count
    if not of_call:
        return None
    packed = pack([tree])
    return Batch(
        packed=packed,
        advantages_S=np.array(of_call, np.float32)[packed.call_S],
        weights_S=term_weights(lengths, aggregation, max_length)[packed.trajectory_S],
        unrolled_tokens=unrolled,
    )
