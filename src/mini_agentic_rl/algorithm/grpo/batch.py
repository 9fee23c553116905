"""From rollouts to what the learner takes: groups without signal dropped, the rest grown into a tree and packed.

Every trajectory counts the same in its group however many calls it made, and every sampled token that was not forced is
one term, with the advantage of the call that sampled it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...tokens import PackedTrees, TokenTree, pack
from ..loop.groups import Group, has_signal
from ..losses import Aggregation, term_weights
from .advantage import Advantage

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TrainingBatch:
    """All that one optimizer step trains on, and the streams that the loss needs."""

    packed: PackedTrees
    advantages_S: Floats
    """Advantage of each term: that of the call which sampled it."""
    weights_S: Floats
    """Weight of each term: the whole normalisation of the loss."""
    unrolled_tokens: int
    """Tokens that training each trajectory's longest call and every diverging one on its own would compute."""

    @property
    def metrics(self) -> dict[str, float]:
        """Tokens of the tree, and how many times as many there would be without sharing."""
        tokens = self.packed.token_count
        return {"tree/tokens": float(tokens), "tree/sharing": self.unrolled_tokens / max(1, tokens)}


def make_batch(
    groups: Sequence[Group],
    advantage: Advantage,
    aggregation: Aggregation,
    *,
    max_length: int,
    mask_truncated: bool,
    keep_zero_advantage: bool,
    compared: bool = True,
) -> TrainingBatch | None:
    """Return the trainable part of `groups`; None when there is none.

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
    return TrainingBatch(
        packed=packed,
        advantages_S=np.array(of_call, np.float32)[packed.call_S],
        weights_S=term_weights(lengths, aggregation, max_length)[packed.trajectory_S],
        unrolled_tokens=unrolled,
    )
