"""The update of GRPO and its relatives: groups in, optimizer steps and their metrics out. Runs on the torch thread.

`GRPOObjective.update` in order: rewards are shaped and compared, packed beside what is imitated, scored by a teacher,
and turned into a loss and optimizer steps (`take_steps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ...policy import Learner, SeenTerms, bounded_step
from ..advantages import advantage_of, batch_normalized
from ..loop.groups import Group, group_metrics, has_signal
from ..loop.objective import (
    Learners,
    SeenCall,
    as_tensor,
    current_logprobs,
    k1,
    loss_of,
    prepare_streams,
    with_kl_penalty,
    with_overlong_penalty,
    with_separate_rewards,
)
from ..losses import CORRECTIONS, find_loss, sum_to_go
from ..policy_gradient import PolicyGradientLoss, means
from ..settings import GRPOSettings
from .batch import Imitated, TrainingBatch, make_batch
from .imitation import DemonstrationSource, demonstrated, observations
from .teachers import Teacher


class GRPOObjective:
    """Compares the rollouts of a task, or of a batch, with each other; see `Objective`. Beside the optimizers it keeps
    no state that a run depends on."""

    def __init__(
        self,
        learners: Learners,
        settings: GRPOSettings,
        *,
        teachers: Mapping[str, Teacher] | None = None,
        demonstrations: Mapping[str, DemonstrationSource] | None = None,
    ) -> None:
        """
        Args:
            teachers: of each adapter that has one.
            demonstrations: of each adapter that imitates some beside its rollouts.

        Raises:
            ValueError: the settings name a teacher, and there is none.
        """
        if settings.teacher is not None and not teachers:
            raise ValueError(f"no teacher is given for the setting teacher={settings.teacher!r}")
        self.learners = learners
        self._settings = settings
        self._teachers = dict(teachers or {})
        self._demonstrations = dict(demonstrations or {})
        self._seen: list[SeenCall] = []

    def has_signal(self, group: Group) -> bool:
        """Return True if the rewards differ; without a baseline or with a teacher, if anything can be trained."""
        if not _compares_rewards(self._settings):
            return any(trajectory.trained_tokens for trajectory in group.trajectories)
        return has_signal(_with_rewards_apart([group], self._settings)[0].credits)

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        """Shape the rewards, compare them, and take `epochs_per_batch` steps; see `Objective.update`."""
        settings, learner = self._settings, self.learners[adapter]
        shaped, kl = _with_rewards_apart(groups, settings), None
        if settings.overlong_buffer > 0:
            shaped = with_overlong_penalty(
                shaped, settings.max_new_tokens, settings.overlong_buffer, settings.overlong_penalty
            )
        # A baseline compares whole rollouts, so the penalty is one number a rollout. Without one, each token has its
        # own penalty plus those of all later tokens.
        penalised = settings.kl_coef > 0 and settings.kl_in_reward
        if penalised and settings.baseline != "none":
            shaped, kl = with_kl_penalty(shaped, learner, settings.kl_coef)
        batch = _packed_batch(shaped, settings, self._imitated(adapter, groups))
        if batch is not None and penalised and settings.baseline == "none":
            batch, kl = with_kl_to_go(batch, learner, settings.kl_coef)
        batch = _compared_over_batch(batch, settings)
        metrics = group_metrics(groups) | ({} if batch is None else batch.metrics)
        if kl is not None:
            metrics["kl"] = kl
        if batch is not None:
            batch = replace(batch, advantages_S=np.float32(settings.reward_coef) * batch.advantages_S)
            if adapter in self._teachers:
                batch, distance = with_teacher(batch, self._teachers[adapter], settings)
                metrics |= distance
            seen, version = SeenTerms(batch.packed.term_count), learner.version
            metrics |= take_steps(learner, batch, settings, seen)
            self._seen += [
                SeenCall(call.record, version, seen.logprobs_S[terms], seen.entropy_S[terms])
                for call, terms in zip(batch.calls, batch.terms_of_calls, strict=True)
            ]
        return metrics

    def take_seen(self) -> Sequence[SeenCall]:
        seen, self._seen = self._seen, []
        return seen

    def _imitated(self, adapter: str, groups: Sequence[Group]) -> list[Imitated]:
        """Return the tokens that are imitated beside the rollouts of a step."""
        settings = self._settings
        imitated = observations(groups, settings.echo_coef) if settings.echo_coef > 0 else []
        if adapter in self._demonstrations:
            records = self._demonstrations[adapter].draw(self.learners[adapter].steps)
            imitated += demonstrated(records, settings.sft_coef)
        return imitated

    def save_state(self, folder: Path) -> None:
        """Write nothing: all is in the optimizers."""

    def load_state(self, folder: Path) -> None:
        """Read nothing: all is in the optimizers."""


def batch_of(groups: Sequence[Group], settings: GRPOSettings) -> TrainingBatch | None:
    """Return the trainable part of `groups` under `settings`; None when there is none."""
    return _compared_over_batch(_packed_batch(_with_rewards_apart(groups, settings), settings), settings)


def take_steps(
    learner: Learner, batch: TrainingBatch, settings: GRPOSettings, seen: SeenTerms | None = None
) -> dict[str, float]:
    """Take `epochs_per_batch` optimizer steps on one batch; return the metrics of the last, those of mismatch of the
    first: its pass is on-policy, so any difference from the sampler's log-probabilities is numerical.

    Args:
        seen: filled with the numbers of the first pass at each term.
    """
    packed, loss = batch.packed, _loss(settings)
    over_rollouts = loss.chosen.over_rollouts
    streams, old_S = prepare_streams(
        learner, packed, loss, settings, torch.from_numpy(batch.weights_S), torch.from_numpy(batch.advantages_S)
    )
    streams = replace(
        streams,
        observation_weights_S=_tensor_or_none(batch.observation_weights_S),
        demonstration_weights_S=_tensor_or_none(batch.demonstration_weights_S),
        teacher_tokens_SK=_tensor_or_none(batch.teacher_tokens_SK),
        teacher_logprobs_SK=_tensor_or_none(batch.teacher_logprobs_SK),
    )
    metrics: dict[str, float] = {}
    mismatch: dict[str, float] = {}
    for epoch in range(settings.epochs_per_batch):
        if over_rollouts is not None:
            is_known = epoch == 0 and streams.old_logprobs_S is not None
            current_S = old_S if is_known else current_logprobs(learner, packed)
            streams = replace(streams, rollout_S=as_tensor(over_rollouts(current_S, old_S, packed.trajectory_S)))
        terms = SeenTerms(packed.term_count) if seen is None or epoch > 0 else seen
        metrics = learner.forward_backward(
            packed, loss, streams, entropy_gradient="entropy_gradient" in loss.needs, seen=terms
        )
        metrics = means(metrics) | bounded_step(learner, packed, batch.sampled_terms, settings.max_update_kl, terms)
        if epoch == 0:
            mismatch = {name: value for name, value in metrics.items() if name.startswith("mismatch/")}
    return metrics | mismatch


def with_teacher(
    batch: TrainingBatch, teacher: Teacher, settings: GRPOSettings
) -> tuple[TrainingBatch, dict[str, float]]:
    """Return the batch with a teacher's log-probabilities in it, and metrics about them. On the torch thread.

    On-policy distillation (Agarwal et al. 2024, arXiv:2306.13649; Gu et al. 2024, arXiv:2306.08543; Lu and Thinking
    Machines 2025, "On-policy distillation") minimises the reverse divergence KL(pi || pi_T) in the states that the
    policy reaches:

        sampled    A_t = reward_coef A_t + teacher_coef (log pi_T(token) - log pi_old(token))
        top_k      A_t = reward_coef A_t, and teacher_coef KL(pi || pi_T) of the state is added to the loss

    The first is minus k1 (`losses.kl`) as the reward of the sampled token alone. Under the policy gradient its mean is
    the gradient of the second, which takes the teacher's K likeliest tokens (`policy/head.py`) and so varies
    less, for more memory.

    Raises:
        UserError: the teacher does not answer.
    """
    if settings.distillation == "top_k":
        tokens_SK, logprobs_SK = teacher.likeliest(batch, settings.teacher_top_k)
        return replace(batch, teacher_tokens_SK=tokens_SK, teacher_logprobs_SK=logprobs_SK), {}
    distance_S = batch.packed.behaviour_logprobs_S.astype(np.float64) - teacher.logprobs(batch)
    distance_S[batch.sampled_terms :] = 0.0
    advantages_S = batch.advantages_S - settings.teacher_coef * distance_S
    total = batch.weights_S.sum()
    metrics = {"teacher/kl": float((batch.weights_S * distance_S).sum() / total)} if total > 0 else {}
    return replace(batch, advantages_S=advantages_S.astype(np.float32)), metrics


def _loss(settings: GRPOSettings) -> PolicyGradientLoss:
    """Return the loss, with the divergence from a teacher if that is not in the advantages."""
    follows = settings.teacher is not None and settings.distillation == "top_k"
    return replace(loss_of(settings), teacher_coef=settings.teacher_coef if follows else 0.0)


def with_kl_to_go(batch: TrainingBatch, learner: Learner, coef: float) -> tuple[TrainingBatch, float]:
    """Return the batch with beta times the sum of k1 from each term on (`losses.sum_to_go`) taken off its advantage,
    and the mean of k1. On the torch thread."""
    k1_S = k1(batch.packed, learner)
    penalty_S = coef * sum_to_go(k1_S, batch.packed.trajectory_S)
    mean = float(k1_S[: batch.sampled_terms].mean()) if batch.calls else 0.0
    return replace(batch, advantages_S=(batch.advantages_S - penalty_S).astype(np.float32)), mean


def _compares_rewards(settings: GRPOSettings) -> bool:
    """Return True if a group of equal rewards teaches nothing."""
    return settings.baseline != "none" and settings.teacher is None


def _with_rewards_apart(groups: Sequence[Group], settings: GRPOSettings) -> Sequence[Group]:
    """Return the groups with their rewards compared each by itself, where that is asked for."""
    if not settings.separate_rewards:
        return groups
    return with_separate_rewards(groups, settings.separate_rewards, settings.separate_reward_weights)


def _packed_batch(
    groups: Sequence[Group], settings: GRPOSettings, imitated: Sequence[Imitated] = ()
) -> TrainingBatch | None:
    """Return what of `groups` is trained, packed with what is imitated; advantages are not compared over the batch
    yet. None where there is nothing."""
    return make_batch(
        groups,
        advantage_of(settings.baseline, settings.advantage_normalization if settings.normalize_advantage else None),
        settings.loss_aggregation,
        max_length=settings.max_trajectory_tokens,
        mask_truncated=settings.mask_truncated,
        keep_zero_advantage=_zero_counts(settings),
        compared=_compares_rewards(settings),
        averages_all=not settings.dynamic_sampling,  # which has drawn others in their place
        imitated=imitated,
    )


def _compared_over_batch(batch: TrainingBatch | None, settings: GRPOSettings) -> TrainingBatch | None:
    """Return the batch with its advantages compared over it; None where nothing is left that has a gradient."""
    if batch is None or not settings.over_batch or not batch.calls:
        return batch
    advantages_S = batch_normalized(batch.advantages_S.astype(np.float64), batch.weights_S.astype(np.float64))
    # Imitated terms have no part in the mean, and keep an advantage of 0.
    advantages_S = np.where(batch.weights_S > 0, advantages_S, 0.0)
    learns = bool(loss_of(settings).needs) or settings.teacher is not None
    if not advantages_S.any() and not learns and batch.sampled_terms == batch.packed.term_count:
        return None
    return replace(batch, advantages_S=advantages_S.astype(np.float32))


def _zero_counts(settings: GRPOSettings) -> bool:
    """Return True if a call whose advantage is 0 takes part in the update: by a gradient of its own, in a mean over the
    batch, or as a part of its rollout."""
    loss = find_loss(settings.policy_loss)
    return (
        settings.kl_coef > 0
        or settings.entropy_coef > 0
        or settings.teacher is not None
        or settings.over_batch
        or bool(loss.needs)
        or loss.over_rollouts is not None
        or (settings.importance_correction != "none" and CORRECTIONS[settings.importance_correction].over_rollouts)
    )


def _tensor_or_none(values: np.ndarray | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values)
