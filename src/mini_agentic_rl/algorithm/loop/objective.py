"""The part of a training that tells algorithms apart: what becomes of the rollouts of a step. The rest is the loop's.

The loop measures, warms up, samples, counts steps, writes checkpoints and goes on from them, for every algorithm alike.
An objective is made once a run, on the torch thread (`ReinforcementLearning.objective`), and used there alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from ...policy import Learner
from ...tokens import PackedTrees
from ..losses.policy_gradient import PolicyGradientLoss
from .groups import Group
from .seen_tokens import SeenCall
from .settings import LoopSettings

Learners = Mapping[str, Learner]
"""The optimizer of each adapter, by the adapter's name."""


class Objective(Protocol):
    """The update: makes new weights of rollouts."""

    @property
    def learners(self) -> Learners:
        """The optimizer of each adapter that is trained; the loop keeps it, and the weights, in checkpoints."""

    def has_signal(self, group: Group) -> bool:
        """Return True if training on the group could change the policy. Safe on any thread."""

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        """Take all optimizer steps on what one step sampled for `adapter`; metrics about it. Nothing to learn from is
        no error: metrics are returned, and no weight changes."""

    def take_seen(self) -> Sequence[SeenCall]:
        """Return what the learner saw of the calls that it has learnt from since this was last asked; empty where the
        objective does not look."""

    def save_state(self, folder: Path) -> None:
        """Write what must be kept besides the adapters and their optimizers (a critic, running means) into the folder
        of a checkpoint."""

    def load_state(self, folder: Path) -> None:
        """Read back what `save_state` wrote."""


def current_terms(packed: PackedTrees, learner: Learner, settings: LoopSettings) -> torch.Tensor | None:
    """Return 1 for each term [S] that the learner's weights sampled as they are, 0 for the others; None where sampling
    does not run ahead and nothing is replayed, so that all are."""
    if settings.max_staleness == 0 and settings.replay_groups == 0:
        return None
    return torch.from_numpy((packed.version_S == learner.version).astype(np.float32))


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
