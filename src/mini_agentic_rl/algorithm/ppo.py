"""Mini-PPO: proximal policy optimization (Schulman et al. 2017) of the agent that a person already has.

    V_old, r, A = GAE(r, V_old), R = A + V_old  ->  [passes over the batch: [minibatch: policy loss and value loss]*]*

Values and advantages are those of the whole batch before the update, so splitting its terms into minibatches or chunks
changes none of them. All trajectories are kept, whatever their group: the critic gives the expected return, not the
group. Terms are ordered by trajectory, and in each in the order in which they were sampled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import UserError
from ..policy import (
    LearnerSettings,
    Loss,
    LossInputs,
    LossOutputs,
    Policy,
    PolicyError,
    SeenTerms,
    ValueLearner,
    ValueSettings,
)
from .advantages import explained_variance, generalized_advantages, uncompared, whiten
from .batch import TrainingBatch, k1, make_batch, overlong_penalty, pack_trajectories
from .groups import Group, Trajectory, group_metrics, turn_numbers
from .losses import Floats, term_weights
from .policy_gradient import PolicyGradientLoss, as_tensor, loss_of, means, prepare_inputs
from .reinforcement import ReinforcementLearning
from .settings import PPOSettings
from .state import Objective
from .tasks import derive_seed

_FOLDER = "critics"
_STATE = "critics.json"


class MiniPPO(ReinforcementLearning[PPOSettings]):
    """Trains the model that it serves, with a critic on the same weights: a value head that reads the last hidden
    state. A rollout is compared with the critic's expectation, not with others of its task, so one of each is enough;
    tokens of one rollout have advantages of their own, over all of its calls.

    Takes what `ReinforcementLearning` takes; `settings` is a `PPOSettings`. Where several adapters are trained, each
    has a critic. The critics are kept in checkpoints; the result of a run is the adapter alone.
    """

    settings_class = PPOSettings

    def __init__(self, model: Any = "embedded", tokenizer: Any | None = None, **options: Any) -> None:
        backend = options.pop("backend", "native")
        if backend != "native":
            raise PolicyError(f"{backend!r} is MiniGRPO's: PPO has the native one alone", setting="backend")
        super().__init__(model, tokenizer, **options)

    def objective(self, policy: Policy, learner: LearnerSettings) -> Objective:
        """Return an optimizer and a critic for each adapter, and the losses of `settings`."""
        return ppo_objective(policy, learner, self.settings, steps_are_passes=not self.learner_settings.total_steps)


def ppo_objective(
    policy: Policy, learner: LearnerSettings, settings: PPOSettings, *, steps_are_passes: bool
) -> PPOObjective:
    """Return the objective of PPO: an optimizer and a critic for each adapter. On the torch thread.

    Args:
        steps_are_passes: the loop counted `learner.total_steps`, one for each pass over a batch.
    """
    value = ValueSettings(learning_rate=settings.value_learning_rate, trains_adapter=settings.value_trains_adapter)
    if learner.total_steps and steps_are_passes:
        learner = learner.model_copy(update={"total_steps": policy_steps(learner.total_steps, settings)})
    learners = {adapter: policy.value_learner(learner, value, adapter) for adapter in policy.model.adapters}
    return PPOObjective(learners, settings)


def policy_steps(passes: int, settings: PPOSettings) -> int:
    """Return the optimizer steps of the policy in so many passes over batches, without those of the critic alone."""
    return max(1, passes - settings.value_warmup_steps * settings.epochs_per_batch) * settings.minibatches


class PPOObjective(Objective):
    """PPO with a critic for each adapter."""

    learners: Mapping[str, ValueLearner]

    def __init__(self, learners: Mapping[str, ValueLearner], settings: PPOSettings) -> None:
        super().__init__(learners)
        self._settings = settings
        self._updates = dict.fromkeys(learners, 0)

    def has_signal(self, group: Group) -> bool:
        """Return True if anything can be trained: equal rewards may be other than the critic expected."""
        return any(trajectory.trained_tokens > 0 for trajectory in group.trajectories)

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        settings, learner = self._settings, self.learners[adapter]
        metrics = group_metrics(groups, self.has_signal)
        batch = make_batch(
            groups,
            uncompared,
            settings.loss_aggregation,
            max_length=settings.max_trajectory_tokens,
            mask_truncated=settings.mask_truncated,
            keep_zero_advantage=True,
            compared=False,
        )
        if batch is None:
            return metrics
        metrics["tree/tokens"] = float(batch.packed.token_count)
        seen, version = SeenTerms(batch.packed.term_count), learner.version
        metrics |= self._take_steps(adapter, batch, seen)
        self.note_seen(batch, version, seen)
        self._updates[adapter] += 1
        return metrics

    def _take_steps(self, adapter: str, batch: TrainingBatch, seen: SeenTerms) -> dict[str, float]:
        """Take all steps on one batch; return the means of their metrics, but the mismatch of the first.

        `seen` is filled with the numbers of the first pass at each term. Later minibatches of that pass are computed by
        weights that the earlier ones have moved.
        """
        settings, learner = self._settings, self.learners[adapter]
        policy, value = loss_of(settings), ValueLoss(settings.value_clip)
        critic_alone = self._updates[adapter] < settings.value_warmup_steps
        loss: Loss = value if critic_alone else PPOLoss(policy, value, settings.value_coef)
        lengths = [trajectory.trained_tokens for trajectory in batch.trajectories]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        inputs, _ = prepare_inputs(learner, batch.packed, policy, settings, batch.inputs)
        inputs, metrics = with_advantages(learner, batch, inputs, settings)
        steps: list[dict[str, float]] = []
        for epoch in range(settings.epochs_per_batch):
            seed = derive_seed(settings.seed, "minibatches", adapter, learner.head_steps, epoch)
            for chosen in minibatches(len(lengths), settings.minibatches, seed):
                packed = pack_trajectories([batch.trajectories[n] for n in chosen])
                terms = np.concatenate([np.arange(starts[n], starts[n + 1]) for n in chosen])
                weights = term_weights(
                    [lengths[n] for n in chosen], settings.loss_aggregation, settings.max_trajectory_tokens
                )
                part_inputs = replace(inputs.select(terms), weights_S=torch.from_numpy(weights[packed.trajectory_S]))
                part = SeenTerms(packed.term_count)
                bonus = "entropy_gradient" in policy.needs
                sums = learner.forward_backward(packed, loss, part_inputs, entropy_gradient=bonus, seen=part)
                if epoch == 0:
                    seen.take_part(terms, part)
                taken = (
                    learner.value_step()
                    if critic_alone
                    else learner.bounded_step(packed, packed.term_count, settings.max_update_kl, part)
                )
                steps.append(means(sums) | taken)
        names = sorted({name for step in steps for name in step})
        mean_of_steps = {name: float(np.mean([step[name] for step in steps if name in step])) for name in names}
        mismatch = {name: value for name, value in steps[0].items() if name.startswith("mismatch/")}
        return metrics | mean_of_steps | mismatch

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


def with_advantages(
    learner: ValueLearner, batch: TrainingBatch, inputs: LossInputs, settings: PPOSettings
) -> tuple[LossInputs, dict[str, float]]:
    """Return the inputs with advantages, old values and returns at every term, and metrics about them."""
    trajectories = batch.trajectories
    lengths = [trajectory.trained_tokens for trajectory in trajectories]
    metrics: dict[str, float] = {}
    values_S = learner.values(batch.packed).double().cpu().numpy()
    rewards = [token_rewards(trajectory, per_turn=settings.credit == "per_turn") for trajectory in trajectories]
    if settings.overlong_buffer > 0:
        for trajectory, rewards_L in zip(trajectories, rewards, strict=True):
            punishment = overlong_penalty(trajectory, settings.max_new_tokens, settings.overlong_buffer)
            rewards_L[-1] += settings.overlong_penalty * punishment
    rewards_S = np.concatenate(rewards)
    if settings.kl_coef > 0 and settings.kl_in_reward:
        k1_S = k1(batch.packed, learner)
        rewards_S = rewards_S - settings.kl_coef * k1_S
        metrics["kl"] = float(k1_S.mean())
    advantages_S = generalized_advantages(
        rewards_S, values_S, lengths, gamma=settings.gamma, gae_lambda=settings.gae_lambda
    )
    # With values of 0 and lambda = 1 the estimate is the discounted return itself.
    returns_S = generalized_advantages(
        rewards_S, np.zeros_like(values_S), lengths, gamma=settings.gamma, gae_lambda=1.0
    )
    metrics |= {
        "value/mean": float(values_S.mean()),
        "value/return_mean": float(returns_S.mean()),
        "value/explained_variance": explained_variance(values_S, returns_S),
        "advantage/std": float(advantages_S.std()),
    }
    inputs = replace(
        inputs,
        advantages_S=as_tensor(whiten(advantages_S) if settings.normalize_advantage else advantages_S),
        old_values_S=as_tensor(values_S),
        returns_S=as_tensor(advantages_S + values_S),
    )
    return inputs, metrics


def token_rewards(trajectory: Trajectory, *, per_turn: bool) -> Floats:
    """Return the reward of each trained token of a trajectory [L], at the token that ended what was rewarded.

    The final reward is at the last token. With `per_turn`, what was emitted after a call is at the last token of that
    call, and the reward of the rollout as a whole (`groups.py`) at the last token of all. A call without a
    trained token passes its reward to the token before it, or to the first one.
    """
    columns = trajectory.column_R
    sizes = [record.trained_tokens if c >= 0 else 0 for record, c in zip(trajectory.records, columns, strict=True)]
    ends_R = np.cumsum(sizes)
    rewards_L = np.zeros(int(ends_R[-1]), np.float64)
    if not per_turn or trajectory.turn_rewards_T is None:
        rewards_L[-1] = trajectory.reward
        return rewards_L
    turns_R = turn_numbers(trajectory.records)
    for turn, reward in enumerate(trajectory.turn_rewards_T):
        end = int(ends_R[np.flatnonzero(turns_R == turn)[-1]])
        rewards_L[max(0, end - 1)] += reward
    rewards_L[-1] += trajectory.whole_reward
    return rewards_L


def minibatches(count: int, parts: int, seed: int) -> Iterator[list[int]]:
    """Yield the numbers 0 ... count - 1 in a random order that `seed` fixes, in at most `parts` parts of about one
    size."""
    order = np.random.default_rng(seed).permutation(count)
    for part in np.array_split(order, min(parts, count)):
        yield sorted(int(index) for index in part)


@dataclass(frozen=True)
class ValueLoss:
    """The critic alone: the weighted sum of its squared errors, with the clipping of the policy's ratio applied to
    values. It is in the authors' implementation of Schulman et al. 2017, and written down by Engstrom et al. 2020
    (arXiv:2005.12729, section 3).

        1/2 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2)

    A `clip` of None leaves 1/2 (V - R)^2.
    """

    clip: float | None = 0.2

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        values_S, old_S, returns_S = inputs.values_S, inputs.old_values_S, inputs.returns_S
        if values_S is None:
            raise ValueError("the value loss needs a learner with a critic: Policy.value_learner")
        if old_S is None or returns_S is None:
            raise ValueError("the value loss needs the inputs old_values_S and returns_S")
        weights_S, errors_S = inputs.weights_S, (values_S - returns_S).square()
        metrics = {"weight": weights_S.sum()}
        if self.clip is not None:
            clipped_S = torch.minimum(torch.maximum(values_S, old_S - self.clip), old_S + self.clip)
            errors_S = torch.maximum(errors_S, (clipped_S - returns_S).square())
            outside_S = (values_S.detach() - old_S).abs() > self.clip
            metrics["value/clip_fraction"] = (weights_S * outside_S).sum()
        loss = (weights_S * errors_S / 2).sum()
        return LossOutputs(loss, metrics | {"value/loss": loss.detach()})


@dataclass(frozen=True)
class PPOLoss:
    """policy + coefficient * value (Schulman et al. 2017, equation 9, the entropy bonus being part of `policy`). Both
    are sums of terms with the same weights, so chunks add up."""

    policy: PolicyGradientLoss
    value: ValueLoss
    coefficient: float = 0.5

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        policy, value = self.policy(inputs), self.value(inputs)
        return LossOutputs(policy.loss + self.coefficient * value.loss, {**value.metrics, **policy.metrics})
