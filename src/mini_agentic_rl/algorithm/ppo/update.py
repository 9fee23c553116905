"""One PPO update (Schulman et al. 2017): values, advantages over time, optimizer steps on minibatches.

    V_old, r, A = GAE(r, V_old), R = A + V_old  ->  [passes over the batch: [minibatch: policy loss and value loss]*]*

Values and advantages are those of the whole batch before the update, so how its terms are split over minibatches, or
over the chunks of one, changes none of them. Runs on the torch thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import UserError
from ...policy import Loss, ValueLearner
from ..grpo.batch import Group
from ..grpo.importance import sequence_correction, token_correction
from ..grpo.loss import GRPOLoss, term_weights
from ..grpo.shaping import k1
from ..grpo.update import group_metrics
from ..seeds import derive_seed
from .episodes import Episodes, minibatches, read_episodes
from .gae import Floats, explained_variance, generalized_advantages, whiten
from .loss import PPOLoss, ValueLoss
from .settings import PPOSettings

_FOLDER = "critics"
_STATE = "critics.json"


class PPOObjective:
    """PPO with a critic for each adapter; see `Objective`."""

    def __init__(self, learners: Mapping[str, ValueLearner], settings: PPOSettings) -> None:
        self.learners = learners
        self._settings = settings
        self._updates = dict.fromkeys(learners, 0)

    def has_signal(self, group: Group) -> bool:
        """Equal rewards have one too: they may be other than expected."""
        return any(trajectory.trained_tokens > 0 for trajectory in group.trajectories)

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        settings = self._settings
        figures = group_metrics(groups, None)
        episodes = read_episodes(groups, settings)
        if episodes is None:
            return figures
        figures["tree/tokens"] = float(episodes.packed.token_count)
        alone = self._updates[adapter] < settings.value_warmup_steps
        figures |= _learn(self.learners[adapter], episodes, settings, adapter, critic_alone=alone)
        self._updates[adapter] += 1
        return figures

    def save_state(self, folder: Path) -> None:
        critics = folder / _FOLDER
        critics.mkdir()
        for adapter, learner in self.learners.items():
            learner.save_head(critics / f"{adapter}.pt")
        (folder / _STATE).write_text(json.dumps(self._updates), encoding="utf-8")

    def load_state(self, folder: Path) -> None:
        if not (folder / _STATE).is_file():
            raise UserError(f"the checkpoint {folder} has no critic: it is not of a PPO run")
        self._updates = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        for adapter, learner in self.learners.items():
            learner.load_head(folder / _FOLDER / f"{adapter}.pt")


def _learn(
    learner: ValueLearner, episodes: Episodes, settings: PPOSettings, adapter: str, *, critic_alone: bool
) -> dict[str, float]:
    """All steps on one batch; figures are means over them, those of the mismatch with the sampler of the first one."""
    streams, figures = _streams(learner, episodes, settings)
    value = ValueLoss(settings.value_clip)
    loss: Loss = value if critic_alone else PPOLoss(_policy_loss(settings), value, settings.value_coef)
    steps: list[dict[str, float]] = []
    for epoch in range(settings.epochs_per_batch):
        seed = derive_seed(settings.seed, "minibatches", adapter, learner.head_steps, epoch)
        for chosen in minibatches(len(episodes.trajectories), settings.minibatches, seed):
            packed, terms = episodes.part(chosen)
            weights_N = term_weights(
                [episodes.lengths[n] for n in chosen], settings.loss_aggregation, settings.max_trajectory_tokens
            )
            own: dict[str, npt.NDArray[Any]] = {name: values_S[terms] for name, values_S in streams.items()}
            own["weights"] = weights_N[packed.trajectory_S]
            metrics = learner.forward_backward(packed, loss, own, entropy_gradient=settings.entropy_coef > 0)
            weight = metrics.pop("weight")
            metrics = {name: amount if name == "loss" else amount / weight for name, amount in metrics.items()}
            steps.append(metrics | (learner.value_step() if critic_alone else learner.optim_step()))
    names = {name for metrics in steps for name in metrics}
    means = {name: float(np.mean([metrics[name] for metrics in steps if name in metrics])) for name in sorted(names)}
    return figures | means | {name: amount for name, amount in steps[0].items() if name.startswith("mismatch/")}


def _streams(
    learner: ValueLearner, episodes: Episodes, settings: PPOSettings
) -> tuple[dict[str, Floats], dict[str, float]]:
    """What the loss needs of every term, and figures about it."""
    packed, rewards_S = episodes.packed, episodes.rewards_S
    values_S = learner.values(packed).double().cpu().numpy()
    streams: dict[str, Floats] = {}
    figures: dict[str, float] = {}
    if settings.kl_in_loss:
        streams["reference_logprobs"] = learner.logprobs(packed, reference=True).double().cpu().numpy()
    elif settings.kl_coef > 0:
        k1_S = k1(packed, learner)
        rewards_S = rewards_S - settings.kl_coef * k1_S
        figures["kl"] = float(k1_S.mean())
    if settings.importance_correction != "none":
        old_S = learner.logprobs(packed).double().cpu().numpy()
        behaviour_S, cap = packed.behaviour_logprobs_S.astype(np.float64), settings.importance_cap
        streams["old_logprobs"] = old_S
        streams["correction"] = (
            token_correction(old_S, behaviour_S, cap)
            if settings.importance_correction == "token"
            else sequence_correction(old_S, behaviour_S, packed.trajectory_S, cap)
        )
    advantages_S = generalized_advantages(
        rewards_S, values_S, episodes.lengths, gamma=settings.gamma, gae_lambda=settings.gae_lambda
    )
    returns_S = advantages_S + values_S
    nothing_expected_S = np.zeros_like(values_S)  # what was earned in fact: the critic has no part in it
    earned_S = generalized_advantages(
        rewards_S, nothing_expected_S, episodes.lengths, gamma=settings.gamma, gae_lambda=1.0
    )
    figures |= {
        "value/mean": float(values_S.mean()),
        "value/return_mean": float(earned_S.mean()),
        "value/explained_variance": explained_variance(values_S, earned_S),
        "advantage/std": float(advantages_S.std()),
    }
    streams |= {
        "advantages": whiten(advantages_S) if settings.normalize_advantage else advantages_S,
        "old_values": values_S,
        "returns": returns_S,
    }
    return {name: amounts.astype(np.float32) for name, amounts in streams.items()}, figures


def _policy_loss(settings: PPOSettings) -> Loss:
    return GRPOLoss(
        clip_low=settings.clip_ratio,
        clip_high=settings.clip_ratio if settings.clip_ratio_high is None else settings.clip_ratio_high,
        kl_coef=settings.kl_coef if settings.kl_in_loss else 0.0,
        kl_estimator=settings.kl_estimator,
        policy_loss=settings.policy_loss,
        entropy_coef=settings.entropy_coef,
    )
