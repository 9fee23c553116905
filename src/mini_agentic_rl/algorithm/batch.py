"""From groups to what the learner takes: penalties and separate rewards, advantages, and trees packed into one row.

Every trajectory counts the same in its group however many calls it made, and every sampled token that was not forced is
one term, with the advantage of the call that sampled it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from torch import Tensor

from ..errors import UserError
from ..policy import Learner, LossInputs
from ..rewards import length_penalty
from ..tokens import CompletionRecord, PackedTrees, TokenTree, pack
from .advantages import Advantage, separate_advantages
from .groups import Group, Trajectory, has_signal
from .losses import Aggregation, Floats, term_weights
from .policy_gradient import as_tensor

ALL_REWARDS = "all"
"""Value of the setting `separate_rewards` that takes every name that the rewards of a step have, but not `REPORTED`."""
REPORTED: Final = ("turns", "calls", "failed_calls")
"""Numbers that agents of this package report beside their rewards: more of them is not better."""

ImitatedKind = Literal["echo", "sft"]
"""Sources of tokens that are imitated: the environment, and demonstrations (`sft.py`)."""


@dataclass(frozen=True)
class Imitated:
    """Tokens that a step imitates beside its policy gradient, as the record of a call that samples them."""

    record: CompletionRecord
    weight: float
    """Weight of each of its tokens in the loss: coefficient and normalisation."""
    kind: ImitatedKind


@dataclass(frozen=True)
class TrainingBatch:
    """Everything that one optimizer step trains on.

    The first terms are those of `calls`, call by call; imitated terms come after them.
    """

    packed: PackedTrees
    inputs: LossInputs
    """Weights and advantages of all terms; 0 where a term is imitated, which has a weight of its own."""
    calls: Sequence[CompletionRecord]
    """The calls that sampled the terms."""
    trajectories: Sequence[Trajectory]
    """The rollouts that made them, by their numbers in `packed`."""
    unrolled_tokens: int
    """Tokens that training each trajectory's longest call and every diverging one on its own would compute."""

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
        return sum(call.trained_tokens for call in self.calls)

    def with_advantages(self, advantages_S: Floats) -> TrainingBatch:
        """Return the batch with other advantages."""
        return replace(self, inputs=replace(self.inputs, advantages_S=as_tensor(advantages_S)))


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
    calls: list[CompletionRecord] = []
    of_call: list[float] = []
    trained: list[Trajectory] = []
    # Groups without signal count in the mean: a step in which one group has a signal would otherwise have a gradient as
    # long as one in which all do, and an optimizer that scales by earlier gradients would follow the noise of that one.
    left_out: list[int] = []
    unrolled = 0
    for group in groups:
        usable = [t.trained_tokens > 0 and not (mask_truncated and t.truncated) for t in group.trajectories]
        credits = group.credits
        if credits.size == 0 or (compared and not has_signal(credits)):
            if averages_all:
                left_out += [t.trained_tokens for t, keep in zip(group.trajectories, usable, strict=True) if keep]
            continue
        values_GC = advantage(credits).reshape(len(group.trajectories), -1)
        for trajectory, values_C, keep in zip(group.trajectories, values_GC, usable, strict=True):
            if not keep:
                continue
            trained.append(trajectory)
            alone = TokenTree()
            for record, column in zip(trajectory.records, trajectory.column_R, strict=True):
                if column < 0 or (values_C[column] == 0 and not keep_zero_advantage):
                    continue
                tree.insert(record, len(trained) - 1)
                alone.insert(record)
                if record.trained_tokens:  # a record without one has no term, and no number in the pack
                    calls.append(record)
                    of_call.append(float(values_C[column]))
            unrolled += alone.token_count
    # Imitated records are no part of a rollout: sums over a rollout's terms must not contain them.
    for number, tokens in enumerate(imitated, len(trained)):
        tree.insert(tokens.record, number)
    shown = [tokens.record for tokens in imitated if tokens.kind == "sft"]
    unrolled += sum(record.prompt_ids.size + record.output_ids.size for record in shown)
    if not of_call and not imitated:
        return None
    packed = pack([tree])
    weights = np.zeros(len(trained) + len(imitated))
    if of_call:
        lengths = [trajectory.trained_tokens for trajectory in trained]
        weights[: len(trained)] = term_weights([*lengths, *left_out], aggregation, max_length)[: len(trained)]

    def imitation_weights(kind: ImitatedKind) -> Tensor | None:
        if not any(tokens.kind == kind for tokens in imitated):
            return None
        of_kind = [tokens.weight if tokens.kind == kind else 0.0 for tokens in imitated]
        return as_tensor(np.array([0.0] * len(of_call) + of_kind)[packed.call_S])

    inputs = LossInputs(
        as_tensor(weights[packed.trajectory_S]),
        as_tensor(np.array(of_call + [0.0] * len(imitated))[packed.call_S]),
        observation_weights_S=imitation_weights("echo"),
        demonstration_weights_S=imitation_weights("sft"),
    )
    return TrainingBatch(packed, inputs, calls, trained, unrolled)


def pack_trajectories(trajectories: Sequence[Trajectory]) -> PackedTrees:
    """Return the trained records of trajectories in one tree; a trajectory's number is its place among them."""
    return pack([TokenTree.of(trajectory.credited_records for trajectory in trajectories)])


def overlong_penalty(trajectory: Trajectory, max_new_tokens: int, buffer_share: float) -> float:
    """Return the soft overlong punishment of the longest call of a rollout, from 0 to -1 (DAPO; Yu et al. 2025,
    equation 13), with L_max the bound of a call and L_cache a share of it; 0 where that is less than a token."""
    longest = max((record.output_ids.size for record in trajectory.records), default=0)
    buffer = round(buffer_share * max_new_tokens)
    return length_penalty(longest, free=max_new_tokens - buffer, limit=max_new_tokens) if buffer else 0.0


def with_overlong_penalty(
    groups: Sequence[Group], max_new_tokens: int, buffer_share: float, weight: float
) -> list[Group]:
    """Return the groups with `weight` times the `overlong_penalty` of each trajectory in the numbers that it is trained
    with."""
    return lowered(groups, lambda t: -weight * overlong_penalty(t, max_new_tokens, buffer_share))


def with_kl_penalty(groups: Sequence[Group], learner: Learner, coef: float) -> tuple[list[Group], float]:
    """Return the groups with beta times the sum of k1 over a trajectory's tokens taken off the numbers that it is
    trained with, R - beta log(pi(y) / pi_ref(y)) (RLOO; Ahmadian et al. 2024, section 2), and the mean of k1. On the
    torch thread."""
    trained = [t for group in groups for t in group.trajectories if t.trained_tokens > 0]
    if not trained:
        return list(groups), 0.0
    packed = pack_trajectories(trained)
    k1_S = k1(packed, learner)
    totals = np.bincount(packed.trajectory_S, weights=k1_S)
    penalties = {id(t): coef * float(total) for t, total in zip(trained, totals, strict=True)}
    return lowered(groups, lambda t: penalties.get(id(t), 0.0)), float(k1_S.mean())


def lowered(groups: Sequence[Group], penalty_of: Callable[[Trajectory], float]) -> list[Group]:
    """Return the groups with a penalty taken off every number that the calls of a trajectory are trained with. Reported
    rewards stay as they are."""
    return [
        replace(group, trajectories=[replace(t, values_C=t.values_C - penalty_of(t)) for t in group.trajectories])
        for group in groups
    ]


def k1(packed: PackedTrees, learner: Learner) -> Floats:
    """Return log pi - log pi_ref of each term [S], pi being what the sampler recorded. On the torch thread."""
    reference_S = learner.logprobs(packed, reference=True).double().cpu().numpy()
    difference_S: Floats = packed.behaviour_logprobs_S.astype(np.float64) - reference_S
    return difference_S


def with_separate_rewards(groups: Sequence[Group], names: Sequence[str], weights: Sequence[float]) -> list[Group]:
    """Return the groups with the advantage A of `separate_advantages` as the number that each rollout is trained with.
    A reward that a rollout does not have is 0.

    Args:
        names: the rewards, or `ALL_REWARDS`; without any, the groups stay as they are.
        weights: w; empty weighs all alike.

    Raises:
        UserError: rollouts have rewards, and none has one of these names.
    """
    if not names:
        return list(groups)
    given = list(dict.fromkeys(n for group in groups for t in group.trajectories for n in t.dimensions))
    if ALL_REWARDS in names:
        names, weights = [name for name in given if name not in REPORTED], ()
    unknown = [name for name in names if name not in given]
    if given and unknown:
        raise UserError(
            f"no rollout of this step has a reward of the name {unknown[0]!r}; there are: {', '.join(given)}",
            setting="separate_rewards",
        )
    weights_K = np.array(list(weights) or [1.0] * len(names), np.float64)
    compared = []
    for group in groups:
        if not group.trajectories or not names:
            compared.append(group)
            continue
        rewards_GK = np.array([[t.dimensions.get(name, 0.0) for name in names] for t in group.trajectories])
        advantages_G = separate_advantages(rewards_GK, weights_K)
        pairs = zip(group.trajectories, advantages_G, strict=True)
        trajectories = [replace(t, values_C=np.array([value])) for t, value in pairs]
        compared.append(replace(group, trajectories=trajectories))
    return compared
