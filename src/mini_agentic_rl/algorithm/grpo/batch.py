"""From rollouts to what the learner takes: groups without signal dropped, the rest grown into a tree and packed.

Every trajectory counts the same in its group however many calls it made, and every sampled token that was not forced is
one term, with the advantage of the call that sampled it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...tokens import CompletionRecord, PackedTrees, TokenTree, pack
from ..advantages import Advantage
from ..loop.groups import Group, Trajectory, has_signal
from ..losses import Aggregation, term_weights

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

ImitatedKind = Literal["echo", "sft"]
"""Sources of tokens that are imitated: the environment, and demonstrations (`imitation.py`)."""


@dataclass(frozen=True)
class Imitated:
    """Tokens that a step imitates beside its policy gradient, in their context: the record of a call that would have
    sampled them."""

    record: CompletionRecord
    weight: float
    """Weight of each of its tokens in the loss: coefficient and normalisation."""
    kind: ImitatedKind


@dataclass(frozen=True)
class TrainedCall:
    """One call of a rollout whose sampled tokens are terms of the batch."""

    record: CompletionRecord
    trajectory: Trajectory
    """The rollout that made it."""
    group: Group
    """The rollouts of its task."""


@dataclass(frozen=True)
class TrainingBatch:
    """All that one optimizer step trains on, and the streams that the loss needs.

    The first terms are those of `calls`, call by call; what is imitated comes after them.
    """

    packed: PackedTrees
    advantages_S: Floats
    """Advantage of each term: that of the call which sampled it."""
    weights_S: Floats
    """Weight of each term in the policy gradient: its whole normalisation; 0 where it is imitated."""
    calls: Sequence[TrainedCall]
    """The calls that sampled the terms."""
    unrolled_tokens: int
    """Tokens that training each trajectory's longest call and every diverging one on its own would compute."""
    observation_weights_S: Floats | None = None
    """Weights of what the environment said, 0 elsewhere; None where that is not imitated."""
    demonstration_weights_S: Floats | None = None
    """Weights of demonstrations, 0 elsewhere; None where there are none."""
    teacher_tokens_SK: Ints | None = None
    """A teacher's likeliest tokens in the state of each term; None for all of the vocabulary, or no teacher."""
    teacher_logprobs_SK: Floats | None = None
    """Their log-probabilities; None for no teacher."""

    @property
    def metrics(self) -> dict[str, float]:
        """Tokens of the tree, how many times as many there would be without sharing, and the entropy of its choices."""
        tokens = self.packed.token_count
        return {
            "tree/tokens": float(tokens),
            "tree/sharing": self.unrolled_tokens / max(1, tokens),
            "choice/entropy": self.packed.choice_entropy(self.sampled_terms),
        }

    @property
    def sampled_terms(self) -> int:
        """Number of the terms that rollouts sampled; the others are imitated."""
        return sum(call.record.trained_tokens for call in self.calls)

    @property
    def terms_of_calls(self) -> list[slice]:
        """The terms of each call, in the order of its sampled tokens."""
        ends = np.cumsum([call.record.trained_tokens for call in self.calls])
        return [slice(end - call.record.trained_tokens, end) for call, end in zip(self.calls, ends, strict=True)]


def make_batch(
    groups: Sequence[Group],
    advantage: Advantage,
    aggregation: Aggregation,
    *,
    max_length: int,
    mask_truncated: bool,
    keep_zero_advantage: bool,
    compared: bool = True,
    averages_all: bool = True,
    imitated: Sequence[Imitated] = (),
) -> TrainingBatch | None:
    """Return the trainable part of `groups` with the imitated tokens beside it; None if there is neither.

    Args:
        max_length: the most tokens that a trajectory may sample (for `dr_grpo`).
        mask_truncated: leave trajectories that ended at a length bound out of the loss; they still count for the
            group's mean.
        keep_zero_advantage: keep calls whose advantage is 0 (a KL penalty still acts on them).
        compared: leave out groups whose rewards are all equal.
        averages_all: average over the rollouts of these groups as well.
        imitated: tokens to predict, in the same tree.
    """
    # One tree for all groups: their tasks begin with the same system prompt.
    tree = TokenTree()
    calls: list[TrainedCall] = []
    of_call: list[float] = []
    lengths: list[int] = []
    # Groups without signal count in the mean: a step in which one group has a signal would otherwise have a gradient as
    # long as one in which all do, and an optimizer that scales by earlier gradients would follow the noise of that one.
    left_out: list[int] = []
    unrolled = 0
    for group in groups:
        credits = group.credits
        if credits.size == 0 or (compared and not has_signal(credits)):
            if averages_all:
                left_out += [one.trained_tokens for one in group.trajectories if _counts(one, mask_truncated)]
            continue
        values_GC = advantage(credits).reshape(len(group.trajectories), -1)
        for trajectory, values_C in zip(group.trajectories, values_GC, strict=True):
            if not _counts(trajectory, mask_truncated):
                continue
            lengths.append(trajectory.trained_tokens)
            alone = TokenTree()
            for record, column in zip(trajectory.records, trajectory.credited.column_R, strict=True):
                if column < 0 or (values_C[column] == 0 and not keep_zero_advantage):
                    continue
                tree.insert(record, len(lengths) - 1)
                alone.insert(record)
                if record.trained_tokens:  # a record without one has no term, and no number in the pack
                    calls.append(TrainedCall(record, trajectory, group))
                    of_call.append(float(values_C[column]))
            unrolled += alone.token_count
    # Imitated records are no part of a rollout: sums over a rollout's terms must not contain them.
    for number, one in enumerate(imitated, len(lengths)):
        tree.insert(one.record, number)
    unrolled += sum(one.record.prompt_ids.size + one.record.output_ids.size for one in imitated if one.kind == "sft")
    if not of_call and not imitated:
        return None
    packed = pack([tree])
    weights = np.zeros(len(lengths), np.float32)
    if of_call:
        weights = term_weights([*lengths, *left_out], aggregation, max_length)[: len(lengths)]
    return TrainingBatch(
        packed=packed,
        advantages_S=np.array(of_call + [0.0] * len(imitated), np.float32)[packed.call_S],
        weights_S=np.concatenate([weights, np.zeros(len(imitated), np.float32)])[packed.trajectory_S],
        calls=calls,
        unrolled_tokens=unrolled,
        observation_weights_S=_weights_of("echo", imitated, len(of_call), packed),
        demonstration_weights_S=_weights_of("sft", imitated, len(of_call), packed),
    )


def _counts(trajectory: Trajectory, mask_truncated: bool) -> bool:
    """Return True if a trajectory has tokens that the loss is averaged over."""
    return trajectory.trained_tokens > 0 and not (mask_truncated and trajectory.truncated)


def _weights_of(kind: ImitatedKind, imitated: Sequence[Imitated], calls: int, packed: PackedTrees) -> Floats | None:
    """Return the weights [S] of what is imitated of one kind; None where there is nothing."""
    if all(one.kind != kind for one in imitated):
        return None
    of_call = [0.0] * calls + [one.weight if one.kind == kind else 0.0 for one in imitated]
    return np.array(of_call, np.float32)[packed.call_S]
