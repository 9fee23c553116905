"""One GRPO update: a batch of groups in, an optimizer step and its figures out. Runs on the torch thread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ...policy import Learner
from .advantage import group_centred, group_normalized, has_signal
from .batch import Batch, Group, make_batch
from .loss import GRPOLoss
from .settings import GRPOSettings


def batch_of(groups: Sequence[Group], settings: GRPOSettings) -> Batch | None:
    """The trainable part of `groups` under `settings`."""
    return make_batch(
        groups,
        group_normalized if settings.normalize_advantage else group_centred,
        settings.loss_aggregation,
        max_length=settings.max_trajectory_tokens,
        mask_truncated=settings.mask_truncated,
        keep_zero_advantage=settings.kl_coef > 0,
    )


def update(learner: Learner, batch: Batch, settings: GRPOSettings) -> dict[str, float]:
    """`epochs_per_batch` optimizer steps on one batch; metrics are those of the last one, mismatch of the first.

    The first pass is on-policy, so what its log-probabilities differ from the sampler's is numerical mismatch.
    """
    loss = GRPOLoss(
        clip_low=settings.clip_ratio,
        clip_high=settings.clip_ratio if settings.clip_ratio_high is None else settings.clip_ratio_high,
        kl_coef=settings.kl_coef,
        kl_estimator=settings.kl_estimator,
    )
    streams = {"advantages": batch.advantages_S, "weights": batch.weights_S}
    if settings.kl_coef > 0:
        streams["reference_logprobs"] = learner.logprobs(batch.packed, reference=True).cpu().numpy()
    metrics: dict[str, float] = {}
    mismatch: dict[str, float] = {}
    for epoch in range(settings.epochs_per_batch):
        metrics = learner.forward_backward(batch.packed, loss, streams)
        weight = metrics.pop("weight")
        metrics = {name: value if name == "loss" else value / weight for name, value in metrics.items()}
        metrics |= learner.optim_step()
        if epoch == 0:
            mismatch = {name: value for name, value in metrics.items() if name.startswith("mismatch/")}
    return metrics | mismatch


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
