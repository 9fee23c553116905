"""The update of GRPO and its relatives: groups in, optimizer steps and their figures out. Runs on the torch thread.

What each step of it computes is told where it stands: rewards are shaped (`shaping.py`), compared (`advantage.py`),
packed (`batch.py`) and turned into a loss (`loss.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mini_agentic_rl.tokens import PackedTrees

from ...policy import Learner
from .advantage import ADVANTAGES, batch_normalized, has_signal
from .batch import Batch, Group, make_batch
from .importance import sequence_correction, sequence_log_ratio, token_correction
from .loss import GRPOLoss
from .objective import Learners
from .settings import GRPOSettings
from .shaping import Floats, with_kl_penalty, with_kl_to_go, with_overlong_penalty


class GRPOObjective:
    """Compares the rollouts of a task, or of a batch, with each other; see `Objective`. Beside the optimizers it keeps
    no state."""

    def __init__(self, learners: Learners, settings: GRPOSettings) -> None:
        self.learners = learners
        self._settings = settings

    def has_signal(self, group: Group) -> bool:
        if self._settings.baseline == "none":
            return any(trajectory.trained_tokens for trajectory in group.trajectories)
        return has_signal(group.credits)

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        settings, learner = self._settings, self.learners[adapter]
        shaped, kl = groups, None
        if settings.overlong_buffer > 0:
            shaped = with_overlong_penalty(
                shaped, settings.max_new_tokens, settings.overlong_buffer, settings.overlong_penalty
            )
        penalised = settings.kl_coef > 0 and settings.kl_in_reward
        if penalised and settings.baseline != "none":
            shaped, kl = with_kl_penalty(shaped, learner, settings.kl_coef)
        batch = _made(shaped, settings)
        if batch is not None and penalised and settings.baseline == "none":
            batch, kl = with_kl_to_go(batch, learner, settings.kl_coef)
        batch = _normalized(batch, settings)
        figures = group_metrics(groups, batch)
        if kl is not None:
            figures["kl"] = kl
        if batch is not None:
            figures |= update(learner, batch, settings)
        return figures

    def save_state(self, folder: Path) -> None:
        """Nothing: all is in the optimizers."""

    def load_state(self, folder: Path) -> None:
        """Nothing: all is in the optimizers."""


def batch_of(groups: Sequence[Group], settings: GRPOSettings) -> Batch | None:
    """The trainable part of `groups` under `settings`; None when there is none."""
    return _normalized(_made(groups, settings), settings)


def update(learner: Learner, batch: Batch, settings: GRPOSettings) -> dict[str, float]:
    """`epochs_per_batch` optimizer steps on one batch; metrics are those of the last one, mismatch of the first.

    The first pass is on-policy, so what its log-probabilities differ from the sampler's is numerical mismatch.
    """
    loss = GRPOLoss(
        clip_low=settings.clip_ratio,
        clip_high=settings.clip_ratio if settings.clip_ratio_high is None else settings.clip_ratio_high,
        kl_coef=settings.kl_coef if settings.kl_in_loss else 0.0,
        kl_estimator=settings.kl_estimator,
        policy_loss=settings.policy_loss,
        entropy_coef=settings.entropy_coef,
    )
    streams = {"advantages": batch.advantages_S, "weights": batch.weights_S}
    if settings.kl_in_loss:
        streams["reference_logprobs"] = learner.logprobs(batch.packed, reference=True).cpu().numpy()
    old_S = batch.packed.behaviour_logprobs_S.astype(np.float64)
    metrics: dict[str, float] = {}
    mismatch: dict[str, float] = {}
    for epoch in range(settings.epochs_per_batch):
        corrects = epoch == 0 and settings.importance_correction != "none"
        current_S = _logprobs(learner, batch.packed) if corrects or settings.policy_loss == "gspo" else old_S
        if corrects:
            correction_S = _correction(current_S, batch.packed, settings)
            streams |= {"old_logprobs": current_S.astype(np.float32), "correction": correction_S.astype(np.float32)}
            old_S = current_S
        if settings.policy_loss == "gspo":
            log_ratio_S = sequence_log_ratio(current_S, old_S, batch.packed.trajectory_S)
            streams["sequence_log_ratio"] = log_ratio_S.astype(np.float32)
        metrics = learner.forward_backward(batch.packed, loss, streams, entropy_gradient=settings.entropy_coef > 0)
        weight = metrics.pop("weight")
        metrics = {name: value if name == "loss" else value / weight for name, value in metrics.items()}
        metrics |= learner.optim_step()
        if epoch == 0:
            mismatch = {name: value for name, value in metrics.items() if name.startswith("mismatch/")}
    return metrics | mismatch


def _made(groups: Sequence[Group], settings: GRPOSettings) -> Batch | None:
    """Before advantages are compared over the batch."""
    return make_batch(
        groups,
        ADVANTAGES[settings.baseline, settings.normalize_advantage and not settings.over_batch],
        settings.loss_aggregation,
        max_length=settings.max_trajectory_tokens,
        mask_truncated=settings.mask_truncated,
        keep_zero_advantage=_zero_counts(settings),
        compared=settings.baseline != "none",
    )


def _normalized(batch: Batch | None, settings: GRPOSettings) -> Batch | None:
    """None where nothing is left that has a gradient."""
    if batch is None or not settings.over_batch:
        return batch
    advantages_S = batch_normalized(batch.advantages_S.astype(np.float64), batch.weights_S.astype(np.float64))
    if not advantages_S.any() and not settings.kl_in_loss and settings.entropy_coef == 0:
        return None
    return replace(batch, advantages_S=advantages_S.astype(np.float32))


def _zero_counts(settings: GRPOSettings) -> bool:
    """Whether a call whose advantage is 0 has a part in the update all the same: by a gradient of its own, in a mean
    over the batch, or as a part of its rollout."""
    return (
        settings.kl_coef > 0
        or settings.entropy_coef > 0
        or settings.over_batch
        or settings.policy_loss == "gspo"
        or settings.importance_correction == "sequence"
    )


def _logprobs(learner: Learner, packed: PackedTrees) -> Floats:
    current_S: Floats = learner.logprobs(packed).double().cpu().numpy()
    return current_S


def _correction(current_S: Floats, packed: PackedTrees, settings: GRPOSettings) -> Floats:
    behaviour_S, cap = packed.behaviour_logprobs_S.astype(np.float64), settings.importance_cap
    if settings.importance_correction == "token":
        return token_correction(current_S, behaviour_S, cap)
    return sequence_correction(current_S, behaviour_S, packed.trajectory_S, cap)


def group_metrics(groups: Sequence[Group], batch: Batch | None) -> dict[str, float]:
    """Figures about what was sampled."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    figures = {
        "groups/count": float(len(groups)),
        "groups/with_signal": float(sum(has_signal(group.credits) for group in groups)),
    }
    if trajectories:
        figures |= reward_metrics([t.reward for t in trajectories], [t.dimensions for t in trajectories])
        figures |= {
            "rollout/sampled_tokens": float(np.mean([t.sampled_tokens for t in trajectories])),
            "rollout/calls": float(np.mean([len(t.records) for t in trajectories])),
            "rollout/truncated": float(np.mean([t.truncated for t in trajectories])),
        }
    if batch is not None:
        figures |= {
            "tree/tokens": float(batch.packed.token_count),
            "tree/sharing": batch.unrolled_tokens / max(1, batch.packed.token_count),
        }
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def reward_metrics(rewards: Sequence[float], dimensions: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Figures about the final rewards of some rollouts, with the mean of each name over those that have several."""
    if not rewards:
        return {}
    by_name: dict[str, list[float]] = {}
    for named in dimensions:
        if len(named) > 1:
            for name, value in named.items():
                by_name.setdefault(name, []).append(value)
    figures = {"reward/mean": float(np.mean(rewards)), "reward/std": float(np.std(rewards))}
    return figures | {f"reward/{name}/mean": float(np.mean(values)) for name, values in by_name.items()}
