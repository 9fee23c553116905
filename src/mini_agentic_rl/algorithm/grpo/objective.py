"""The update of GRPO and its relatives: groups in, optimizer steps and their metrics out. Runs on the torch thread.

What each step of it computes is told where it stands: rewards are shaped (`loop/shaping.py`, `gdpo.py`), compared
(`advantage.py`), packed (`batch.py`) beside what is imitated (`echo.py`, `demonstrations.py`), seen by a teacher
(`distillation.py`) and turned into a loss (`losses/`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ...policy import Learner, SeenTerms, TermStreams, bounded_step
from ...tokens import PackedTrees
from ..loop.groups import Group, group_metrics, has_signal
from ..loop.objective import Learners, current_terms, loss_of
from ..loop.seen_tokens import SeenCall
from ..loop.shaping import k1, with_kl_penalty, with_overlong_penalty
from ..losses import CORRECTIONS, LOSSES, importance_correction
from ..losses.base import Floats
from ..losses.kl import sum_to_go
from ..losses.policy_gradient import PolicyGradientLoss, means
from .advantage import advantage_of, batch_normalized
from .batch import Imitated, TrainingBatch, make_batch
from .demonstrations import DemonstrationSource, demonstrated
from .distillation import with_teacher
from .echo import observations
from .gdpo import with_separate_rewards
from .settings import GRPOSettings
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
        # A baseline compares whole rollouts, so the penalty is one number a rollout; without one, each token bears its
        # own, and those of all that comes after it.
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
                batch, found = with_teacher(batch, self._teachers[adapter], settings)
                metrics |= found
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
        """Return what is imitated beside the rollouts of a step."""
        settings = self._settings
        found = observations(groups, settings.echo_coef) if settings.echo_coef > 0 else []
        if adapter in self._demonstrations:
            drawn = self._demonstrations[adapter].draw(self.learners[adapter].steps)
            found += demonstrated(drawn, settings.sft_coef)
        return found

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
    first.

    The first pass is on-policy, so what its log-probabilities differ from the sampler's is numerical mismatch.

    Args:
        seen: is given what the first pass finds at each term.
    """
    packed, loss = batch.packed, _loss(settings)
    level, over_rollouts = settings.importance_correction, loss.chosen.over_rollouts
    streams = TermStreams(
        torch.from_numpy(batch.weights_S),
        torch.from_numpy(batch.advantages_S),
        observation_weights_S=_tensor_or_none(batch.observation_weights_S),
        demonstration_weights_S=_tensor_or_none(batch.demonstration_weights_S),
        current_S=current_terms(packed, learner, settings),
        teacher_tokens_SK=_tensor_or_none(batch.teacher_tokens_SK),
        teacher_logprobs_SK=_tensor_or_none(batch.teacher_logprobs_SK),
    )
    if "reference_logprobs" in loss.needs:
        streams = replace(streams, reference_logprobs_S=learner.logprobs(packed, reference=True).cpu())
    old_S = behaviour_S = packed.behaviour_logprobs_S.astype(np.float64)
    metrics: dict[str, float] = {}
    mismatch: dict[str, float] = {}
    for epoch in range(settings.epochs_per_batch):
        takes_old = epoch == 0 and (level != "none" or "old_logprobs" in loss.needs or learner.drops)
        current_S = _logprobs(learner, packed) if takes_old or over_rollouts is not None else old_S
        if takes_old:
            old_S = current_S
            streams = replace(streams, old_logprobs_S=_tensor(old_S))
        if epoch == 0 and level != "none":
            correction_S = importance_correction(
                level, old_S, behaviour_S, packed.trajectory_S, settings.importance_cap, settings.importance_floor
            )
            streams = replace(streams, correction_S=_tensor(correction_S))
        if over_rollouts is not None:
            streams = replace(streams, rollout_S=_tensor(over_rollouts(current_S, old_S, packed.trajectory_S)))
        found = SeenTerms(packed.term_count) if seen is None or epoch > 0 else seen
        metrics = learner.forward_backward(
            packed, loss, streams, entropy_gradient="entropy_gradient" in loss.needs, seen=found
        )
        metrics = means(metrics) | bounded_step(learner, packed, batch.sampled_terms, settings.max_update_kl, found)
        if epoch == 0:
            mismatch = {name: value for name, value in metrics.items() if name.startswith("mismatch/")}
    return metrics | mismatch


def _loss(settings: GRPOSettings) -> PolicyGradientLoss:
    """Return the loss, with a teacher's part in it where that is not in the advantages."""
    follows = settings.teacher is not None and settings.distillation == "top_k"
    return replace(loss_of(settings), teacher_coef=settings.teacher_coef if follows else 0.0)


def with_kl_to_go(batch: TrainingBatch, learner: Learner, coef: float) -> tuple[TrainingBatch, float]:
    """Return the batch with beta times the sum of k1 from each term on (`kl.sum_to_go`) taken off its advantage, and
    the mean of k1. On the torch thread."""
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
    # What is imitated weighs nothing here, and is not told how far it is from the mean.
    advantages_S = np.where(batch.weights_S > 0, advantages_S, 0.0)
    learns = bool(loss_of(settings).needs) or settings.teacher is not None
    if not advantages_S.any() and not learns and batch.sampled_terms == batch.packed.term_count:
        return None
    return replace(batch, advantages_S=advantages_S.astype(np.float32))


def _zero_counts(settings: GRPOSettings) -> bool:
    """Return True if a call whose advantage is 0 has a part in the update all the same: by a gradient of its own, in a
    mean over the batch, or as a part of its rollout."""
    loss = LOSSES[settings.policy_loss]
    return (
        settings.kl_coef > 0
        or settings.entropy_coef > 0
        or settings.teacher is not None
        or settings.over_batch
        or bool(loss.needs)
        or loss.over_rollouts is not None
        or (settings.importance_correction != "none" and CORRECTIONS[settings.importance_correction].over_rollouts)
    )


def _logprobs(learner: Learner, packed: PackedTrees) -> Floats:
    """Return log-probabilities [S] under the learner's weights as they are now, on the CPU."""
    current_S: Floats = learner.logprobs(packed).double().cpu().numpy()
    return current_S


def _tensor_or_none(values: np.ndarray | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values)


def _tensor(values_S: Floats) -> torch.Tensor:
    return torch.from_numpy(values_S.astype(np.float32))
