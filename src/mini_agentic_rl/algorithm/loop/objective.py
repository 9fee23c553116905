"""The part of a training that tells algorithms apart: `Objective`, and what the objectives of GRPO and PPO share.

The loop measures, warms up, samples, counts steps, writes checkpoints and resumes from them for every algorithm alike.
An objective is made once a run, on the torch thread (`ReinforcementLearning.objective`), and used there alone.

Shared by objectives: penalties on a rollout's reward before rewards are compared, the inputs that a loss needs before
the first optimizer step (`prepare_streams`), and the record of what the learner computed at each trained token, which
goes into the store as one span of each rollout so that a dashboard can colour tokens by it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ...errors import UserError
from ...policy import Learner, TermStreams
from ...semconv import AGL_LEARNER, LearnerSpanAttributes
from ...store import LightningStore
from ...tokens import CompletionRecord, PackedTrees, TokenTree, pack
from ...types import Span
from ..advantages import separate_advantages
from ..losses import Floats, importance_correction
from ..policy_gradient import PolicyGradientLoss
from ..settings import LoopSettings
from .groups import Credit, Group, Trajectory

logger = logging.getLogger(__name__)

Learners = Mapping[str, Learner]
"""The optimizer of each adapter, by the adapter's name."""
ALL = "all"
"""Stands for every name that the rewards of a step have."""


@dataclass(frozen=True)
class SeenCall:
    """One LLM call as the learner computed it before the update."""

    record: CompletionRecord
    version: int
    """Policy version of the learner's weights."""
    logprobs_N: npt.NDArray[np.float32]
    """Log-probabilities of its trained tokens [N]."""
    entropy_N: npt.NDArray[np.float32]
    """Entropies of the distributions that they were drawn from [N]."""


class Objective(Protocol):
    """The update: makes new weights of rollouts."""

    @property
    def learners(self) -> Learners:
        """The optimizer of each adapter that is trained; the loop keeps it, and the weights, in checkpoints."""

    def has_signal(self, group: Group) -> bool:
        """Return True if training on the group could change the policy. Safe on any thread."""

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        """Take all optimizer steps on the groups that one step sampled for `adapter`; return metrics. If there is
        nothing to learn from, no weight changes."""

    def take_seen(self) -> Sequence[SeenCall]:
        """Return the calls that were trained since the last call of this method; empty if the objective keeps none."""

    def save_state(self, folder: Path) -> None:
        """Write what must be kept besides the adapters and their optimizers (a critic, running means) into the folder
        of a checkpoint."""

    def load_state(self, folder: Path) -> None:
        """Read back what `save_state` wrote."""


def loss_of(settings: LoopSettings) -> PolicyGradientLoss:
    """Return the loss that the settings of a run ask for."""
    return PolicyGradientLoss(
        clip_low=settings.clip_ratio,
        clip_high=settings.clip_ratio if settings.clip_ratio_high is None else settings.clip_ratio_high,
        kl_coef=settings.kl_coef if settings.kl_in_loss else 0.0,
        kl_estimator=settings.kl_estimator,
        policy_loss=settings.policy_loss,
        entropy_coef=settings.entropy_coef,
        divergence_bound=settings.divergence_bound,
    )


def prepare_streams(
    learner: Learner,
    packed: PackedTrees,
    loss: PolicyGradientLoss,
    settings: LoopSettings,
    weights_S: torch.Tensor,
    advantages_S: torch.Tensor | None = None,
) -> tuple[TermStreams, Floats]:
    """Return the inputs that a loss needs before the first optimizer step on a batch, and log pi_old [S] in float64. On
    the torch thread.

    log pi_old are the learner's own log-probabilities if an importance correction or the loss asks for them, or if the
    learner uses dropout; else those that the sampler recorded.
    """
    behaviour_S = old_S = packed.behaviour_logprobs_S.astype(np.float64)
    streams = TermStreams(weights_S, advantages_S)
    if settings.max_staleness or settings.replay_groups:
        streams = replace(streams, current_S=as_tensor(packed.version_S == learner.version))
    if "reference_logprobs" in loss.needs:
        streams = replace(streams, reference_logprobs_S=learner.logprobs(packed, reference=True).cpu())
    correction = settings.importance_correction
    if correction != "none" or "old_logprobs" in loss.needs or learner.drops:
        old_S = current_logprobs(learner, packed)
        streams = replace(streams, old_logprobs_S=as_tensor(old_S))
    if correction != "none":
        weight_S = importance_correction(
            correction, old_S, behaviour_S, packed.trajectory_S, settings.importance_cap, settings.importance_floor
        )
        streams = replace(streams, correction_S=as_tensor(weight_S))
    return streams, old_S


def current_logprobs(learner: Learner, packed: PackedTrees) -> Floats:
    """Return log-probabilities [S] under the learner's weights as they are now. On the torch thread."""
    logprobs_S: Floats = learner.logprobs(packed).double().cpu().numpy()
    return logprobs_S


def as_tensor(values_S: npt.NDArray[np.generic]) -> torch.Tensor:
    """Return values as a float32 tensor on the CPU."""
    return torch.from_numpy(values_S.astype(np.float32))


def soft_overlong(length: int, max_length: int, buffer: int) -> float:
    """Return the soft overlong punishment of DAPO (Yu et al. 2025, equation 13), from 0 to -1, for a reply of |y|
    tokens:

        0                                      |y| <= L_max - L_cache
        ((L_max - L_cache) - |y|) / L_cache    L_max - L_cache < |y| <= L_max
        -1                                     L_max < |y|

    Args:
        length: |y|.
        max_length: L_max.
        buffer: L_cache; 0 punishes only what is longer than `max_length`.
    """
    if length > max_length:
        return -1.0
    return min(0.0, (max_length - buffer - length) / buffer) if buffer > 0 else 0.0


def overlong_penalty(trajectory: Trajectory, max_new_tokens: int, buffer_share: float) -> float:
    """Return `soft_overlong` of the longest call of a rollout, with L_max the bound of a call and L_cache a share of
    it."""
    longest = max((record.output_ids.size for record in trajectory.records), default=0)
    return soft_overlong(longest, max_new_tokens, round(buffer_share * max_new_tokens))


def lowered(trajectory: Trajectory, penalty: float) -> Trajectory:
    """Return the trajectory with `penalty` taken off every number that its calls are trained with. Reported rewards
    stay as they are."""
    if penalty == 0:
        return trajectory
    credit = trajectory.credited
    return replace(trajectory, credit=Credit(credit.values_C - penalty, credit.column_R))


def with_overlong_penalty(
    groups: Sequence[Group], max_new_tokens: int, buffer_share: float, weight: float
) -> list[Group]:
    """Return the groups with `weight` times the `overlong_penalty` of each trajectory in the numbers that it is trained
    with."""
    return [
        replace(
            group,
            trajectories=[
                lowered(t, -weight * overlong_penalty(t, max_new_tokens, buffer_share)) for t in group.trajectories
            ],
        )
        for group in groups
    ]


def with_kl_penalty(groups: Sequence[Group], learner: Learner, coef: float) -> tuple[list[Group], float]:
    """Return the groups with beta times the sum of k1 over a trajectory's tokens taken off the numbers that it is
    trained with, R - beta log(pi(y) / pi_ref(y)) (RLOO; Ahmadian et al. 2024, section 2), and the mean of k1. On the
    torch thread."""
    tree, count = TokenTree(), 0
    numbers: dict[tuple[int, int], int] = {}
    for g, group in enumerate(groups):
        for t, trajectory in enumerate(group.trajectories):
            if trajectory.trained_tokens == 0:
                continue
            numbers[g, t] = count
            for record, column in zip(trajectory.records, trajectory.credited.column_R, strict=True):
                if column >= 0:
                    tree.insert(record, count)
            count += 1
    if not numbers:
        return list(groups), 0.0
    packed = pack([tree])
    k1_S = k1(packed, learner)
    totals = np.bincount(packed.trajectory_S, weights=k1_S)
    penalised = [
        replace(
            group,
            trajectories=[
                lowered(trajectory, coef * float(totals[numbers[g, t]]) if (g, t) in numbers else 0.0)
                for t, trajectory in enumerate(group.trajectories)
            ],
        )
        for g, group in enumerate(groups)
    ]
    return penalised, float(k1_S.mean())


def k1(packed: PackedTrees, learner: Learner) -> Floats:
    """Return log pi - log pi_ref of each term [S], pi being what the sampler recorded. On the torch thread."""
    reference_S = learner.logprobs(packed, reference=True).double().cpu().numpy()
    difference: Floats = packed.behaviour_logprobs_S.astype(np.float64) - reference_S
    return difference


def with_separate_rewards(groups: Sequence[Group], names: Sequence[str], weights: Sequence[float]) -> list[Group]:
    """Return the groups with the advantage A of `separate_advantages` as the number that each rollout is trained with.
    A reward that a rollout does not have is 0.

    Args:
        names: the rewards, or `ALL`.
        weights: w; empty weighs all alike.

    Raises:
        UserError: rollouts have rewards, and none has one of these names.
    """
    given = list(dict.fromkeys(n for group in groups for t in group.trajectories for n in t.dimensions))
    if ALL in names:
        names, weights = given, ()
    unknown = [name for name in names if name not in given]
    if given and unknown:
        raise UserError(
            f"no rollout of this step has a reward of the name {unknown[0]!r}; there are: {', '.join(given)}",
            setting="separate_rewards",
        )
    weights_K = np.array(list(weights) or [1.0] * len(names), np.float64)
    compared = []
    for group in groups:
        rewards_GK = np.array([[t.dimensions.get(name, 0.0) for name in names] for t in group.trajectories])
        if not group.trajectories or not names:
            compared.append(group)
            continue
        advantages_G = separate_advantages(rewards_GK, weights_K)
        pairs = zip(group.trajectories, advantages_G, strict=True)
        trajectories = [replace(t, credit=Credit(np.array([value]), t.credited.column_R)) for t, value in pairs]
        compared.append(replace(group, trajectories=trajectories))
    return compared


async def record_seen(store: LightningStore, calls: Sequence[SeenCall]) -> None:
    """Add a span to each attempt among the calls. A failure of the store is only logged: no result of the run depends
    on these spans.

    The loop calls this when the next step begins, or the last one has ended: nothing may be awaited between an update
    and its place in the metrics, or an interruption there would find one without the other.
    """
    by_attempt: dict[tuple[str, str], list[SeenCall]] = {}
    for call in calls:
        if call.record.rollout_id and call.record.attempt_id and np.isfinite(call.logprobs_N).all():
            by_attempt.setdefault((call.record.rollout_id, call.record.attempt_id), []).append(call)
    if not by_attempt:
        return
    try:
        numbers = await store.get_many_span_sequence_ids(list(by_attempt))
        numbered = zip(by_attempt.items(), numbers, strict=True)
        spans = [_span(*ids, number, of_attempt) for (ids, of_attempt), number in numbered]
        await store.add_many_spans(spans)
    except Exception as error:  # of any store
        logger.warning("log-probabilities and entropies of %d rollouts are not recorded: %s", len(by_attempt), error)


def _span(rollout_id: str, attempt_id: str, number: int, calls: Sequence[SeenCall]) -> Span:
    now = time.time()
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=number,
        trace_id=secrets.token_hex(16),
        span_id=secrets.token_hex(8),
        name=AGL_LEARNER,
        start_time=now,
        end_time=now,
        attributes={
            LearnerSpanAttributes.VERSION: calls[0].version,
            LearnerSpanAttributes.SPAN_IDS: [str(call.record.metadata.get("span_id", "")) for call in calls],
            LearnerSpanAttributes.LENGTHS: [int(call.logprobs_N.size) for call in calls],
            LearnerSpanAttributes.LOGPROBS: _rounded([call.logprobs_N for call in calls]),
            LearnerSpanAttributes.ENTROPIES: _rounded([call.entropy_N for call in calls]),
        },
    )


def _rounded(each: Sequence[npt.NDArray[np.float32]]) -> list[float]:
    return [round(value, 4) for values_N in each for value in values_N.tolist()]
