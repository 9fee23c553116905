"""One PPO update (Schulman et al. 2017): values, advantages over time, optimizer steps on minibatches.

    V_old, r, A = GAE(r, V_old), R = A + V_old  ->  [passes over the batch: [minibatch: policy loss and value loss]*]*

Values and advantages are those of the whole batch before the update, so how its terms are split over minibatches, or
over the chunks of one, changes none of them. Runs on the torch thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ...errors import UserError
from ...policy import Loss, SeenTerms, TermStreams, ValueLearner, bounded_step
from ..loop.groups import Group, group_metrics
from ..loop.objective import current_terms, loss_of
from ..loop.seen_tokens import SeenCall
from ..loop.shaping import k1
from ..losses import importance_correction, term_weights
from ..losses.base import Floats
from ..losses.policy_gradient import PolicyGradientLoss, means
from ..losses.value import PPOLoss, ValueLoss
from ..seeds import derive_seed
from .episodes import CriticEpisodes, minibatches, read_episodes
from .gae import explained_variance, generalized_advantages, whiten
from .settings import PPOSettings

_FOLDER = "critics"
_STATE = "critics.json"


class PPOObjective:
    """PPO with a critic for each adapter; see `Objective`."""

    def __init__(self, learners: Mapping[str, ValueLearner], settings: PPOSettings) -> None:
        self.learners = learners
        self._settings = settings
        self._updates = dict.fromkeys(learners, 0)
        self._seen: list[SeenCall] = []

    def has_signal(self, group: Group) -> bool:
        """Equal rewards have one too: they may be other than expected."""
        return any(trajectory.trained_tokens > 0 for trajectory in group.trajectories)

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        settings = self._settings
        metrics = group_metrics(groups)
        episodes = read_episodes(groups, settings)
        if episodes is None:
            return metrics
        metrics["tree/tokens"] = float(episodes.packed.token_count)
        alone = self._updates[adapter] < settings.value_warmup_steps
        learner, seen = self.learners[adapter], SeenTerms(episodes.packed.term_count)
        version = learner.version
        metrics |= _learn(learner, episodes, settings, adapter, seen, critic_alone=alone)
        self._seen += [
            SeenCall(record, version, seen.logprobs_S[terms], seen.entropy_S[terms])
            for record, terms in episodes.terms_of_records()
        ]
        self._updates[adapter] += 1
        return metrics

    def take_seen(self) -> Sequence[SeenCall]:
        seen, self._seen = self._seen, []
        return seen

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
    learner: ValueLearner,
    episodes: CriticEpisodes,
    settings: PPOSettings,
    adapter: str,
    seen: SeenTerms,
    *,
    critic_alone: bool,
) -> dict[str, float]:
    """Take all steps on one batch; return the means of their metrics, but the mismatch of the first.

    What the first pass over the batch finds at each term is put into `seen`: a later minibatch of it finds it under
    weights that the earlier ones have moved.
    """
    policy, value = loss_of(settings), ValueLoss(settings.value_clip)
    streams, metrics = _streams(learner, episodes, settings, policy)
    loss: Loss = value if critic_alone else PPOLoss(policy, value, settings.value_coef)
    steps: list[dict[str, float]] = []
    for epoch in range(settings.epochs_per_batch):
        seed = derive_seed(settings.seed, "minibatches", adapter, learner.head_steps, epoch)
        for chosen in minibatches(len(episodes.trajectories), settings.minibatches, seed):
            packed, terms = episodes.part(chosen)
            weights_N = term_weights(
                [episodes.lengths[n] for n in chosen], settings.loss_aggregation, settings.max_trajectory_tokens
            )
            own = replace(streams.select(terms), weights_S=torch.from_numpy(weights_N[packed.trajectory_S]))
            part = SeenTerms(packed.term_count)
            bonus = "entropy_gradient" in policy.needs
            found = learner.forward_backward(packed, loss, own, entropy_gradient=bonus, seen=part)
            if epoch == 0:
                seen.take_part(terms, part)
            taken = (
                learner.value_step()
                if critic_alone
                else bounded_step(learner, packed, packed.term_count, settings.max_update_kl, part)
            )
            steps.append(means(found) | taken)
    names = sorted({name for found in steps for name in found})
    of_all = {name: float(np.mean([found[name] for found in steps if name in found])) for name in names}
    return metrics | of_all | {name: amount for name, amount in steps[0].items() if name.startswith("mismatch/")}


def _streams(
    learner: ValueLearner, episodes: CriticEpisodes, settings: PPOSettings, policy: PolicyGradientLoss
) -> tuple[TermStreams, dict[str, float]]:
    """Return what the losses need of every term but its weight, which is that of a minibatch; and metrics about it."""
    packed, rewards_S = episodes.packed, episodes.rewards_S
    values_S = learner.values(packed).double().cpu().numpy()
    computed: dict[str, Floats] = {}
    metrics: dict[str, float] = {}
    if "reference_logprobs" in policy.needs:
        computed["reference_logprobs_S"] = learner.logprobs(packed, reference=True).double().cpu().numpy()
    if settings.kl_coef > 0 and settings.kl_in_reward:
        k1_S = k1(packed, learner)
        rewards_S = rewards_S - settings.kl_coef * k1_S
        metrics["kl"] = float(k1_S.mean())
    level = settings.importance_correction
    if level != "none" or "old_logprobs" in policy.needs or learner.drops:
        computed["old_logprobs_S"] = learner.logprobs(packed).double().cpu().numpy()
    if level != "none":
        computed["correction_S"] = importance_correction(
            level,
            computed["old_logprobs_S"],
            packed.behaviour_logprobs_S.astype(np.float64),
            packed.trajectory_S,
            settings.importance_cap,
            settings.importance_floor,
        )
    advantages_S = generalized_advantages(
        rewards_S, values_S, episodes.lengths, gamma=settings.gamma, gae_lambda=settings.gae_lambda
    )
    nothing_expected_S = np.zeros_like(values_S)  # what was earned in fact: the critic has no part in it
    earned_S = generalized_advantages(
        rewards_S, nothing_expected_S, episodes.lengths, gamma=settings.gamma, gae_lambda=1.0
    )
    metrics |= {
        "value/mean": float(values_S.mean()),
        "value/return_mean": float(earned_S.mean()),
        "value/explained_variance": explained_variance(values_S, earned_S),
        "advantage/std": float(advantages_S.std()),
    }
    computed |= {
        "advantages_S": whiten(advantages_S) if settings.normalize_advantage else advantages_S,
        "old_values_S": values_S,
        "returns_S": advantages_S + values_S,
    }
    tensors = {name: torch.from_numpy(amounts_S.astype(np.float32)) for name, amounts_S in computed.items()}
    current_S = current_terms(packed, learner, settings)
    return TermStreams(weights_S=torch.ones(len(values_S)), current_S=current_S, **tensors), metrics
