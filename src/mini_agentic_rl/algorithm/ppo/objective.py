"""One PPO update (Schulman et al. 2017): values, advantages over time, optimizer steps on minibatches.

    V_old, r, A = GAE(r, V_old), R = A + V_old  ->  [passes over the batch: [minibatch: policy loss and value loss]*]*

Values and advantages are those of the whole batch before the update, so splitting its terms into minibatches or chunks
changes none of them. All trajectories are kept, whatever their group: the critic gives the expected return, not the
group. Terms stand trajectory after trajectory, and in each in the order in which they were sampled. Runs on the torch
thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ...errors import UserError
from ...policy import Loss, SeenTerms, TermStreams, ValueLearner, bounded_step
from ...tokens import CompletionRecord, PackedTrees, TokenTree, pack
from ..advantages import explained_variance, generalized_advantages, whiten
from ..loop.groups import Group, Trajectory, group_metrics, turn_numbers
from ..loop.objective import SeenCall, as_tensor, k1, loss_of, overlong_penalty, prepare_streams
from ..losses import Floats, Ints, term_weights
from ..policy_gradient import PolicyGradientLoss, PPOLoss, ValueLoss, means
from ..seeds import derive_seed
from ..settings import PPOSettings

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

    `seen` is filled with the numbers of the first pass at each term. Later minibatches of that pass are computed by
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
            sums = learner.forward_backward(packed, loss, own, entropy_gradient=bonus, seen=part)
            if epoch == 0:
                seen.take_part(terms, part)
            taken = (
                learner.value_step()
                if critic_alone
                else bounded_step(learner, packed, packed.term_count, settings.max_update_kl, part)
            )
            steps.append(means(sums) | taken)
    names = sorted({name for step in steps for name in step})
    of_all = {name: float(np.mean([step[name] for step in steps if name in step])) for name in names}
    return metrics | of_all | {name: amount for name, amount in steps[0].items() if name.startswith("mismatch/")}


def _streams(
    learner: ValueLearner, episodes: CriticEpisodes, settings: PPOSettings, policy: PolicyGradientLoss
) -> tuple[TermStreams, dict[str, float]]:
    """Return the inputs of the losses at every term, except the weights, which depend on the minibatch; and metrics."""
    packed, rewards_S = episodes.packed, episodes.rewards_S
    metrics: dict[str, float] = {}
    values_S = learner.values(packed).double().cpu().numpy()
    streams, _ = prepare_streams(learner, packed, policy, settings, torch.ones(len(values_S)))
    if settings.kl_coef > 0 and settings.kl_in_reward:
        k1_S = k1(packed, learner)
        rewards_S = rewards_S - settings.kl_coef * k1_S
        metrics["kl"] = float(k1_S.mean())
    advantages_S = generalized_advantages(
        rewards_S, values_S, episodes.lengths, gamma=settings.gamma, gae_lambda=settings.gae_lambda
    )
    # With values of 0 and lambda = 1 the estimate is the discounted return itself.
    returns_S = generalized_advantages(
        rewards_S, np.zeros_like(values_S), episodes.lengths, gamma=settings.gamma, gae_lambda=1.0
    )
    metrics |= {
        "value/mean": float(values_S.mean()),
        "value/return_mean": float(returns_S.mean()),
        "value/explained_variance": explained_variance(values_S, returns_S),
        "advantage/std": float(advantages_S.std()),
    }
    streams = replace(
        streams,
        advantages_S=as_tensor(whiten(advantages_S) if settings.normalize_advantage else advantages_S),
        old_values_S=as_tensor(values_S),
        returns_S=as_tensor(advantages_S + values_S),
    )
    return streams, metrics


@dataclass(frozen=True)
class CriticEpisodes:
    """The trajectories of one update; S terms in all."""

    trajectories: Sequence[Trajectory]
    packed: PackedTrees
    """All of them in one tree: their tasks begin with the same system prompt."""
    lengths: Sequence[int]
    """Terms of each trajectory."""
    rewards_S: Floats
    """Reward of each term."""

    def part(self, chosen: Sequence[int]) -> tuple[PackedTrees, Ints]:
        """Return some trajectories packed by themselves, and the places of their terms among all."""
        starts = np.concatenate([[0], np.cumsum(self.lengths)])
        terms = np.concatenate([np.arange(starts[n], starts[n + 1]) for n in chosen])
        return _pack([self.trajectories[n] for n in chosen]), terms

    def terms_of_records(self) -> Iterator[tuple[CompletionRecord, slice]]:
        """Yield each trained LLM call with the places of its terms among all."""
        start = 0
        for trajectory in self.trajectories:
            for record, column in zip(trajectory.records, trajectory.credited.column_R, strict=True):
                if column >= 0:
                    yield record, slice(start, start + record.trained_tokens)
                    start += record.trained_tokens


def read_episodes(groups: Sequence[Group], settings: PPOSettings) -> CriticEpisodes | None:
    """Return the trajectories of `groups` that have trained tokens, each with its rewards; None when there is none."""
    usable = [
        trajectory
        for group in groups
        for trajectory in group.trajectories
        if trajectory.trained_tokens > 0 and not (settings.mask_truncated and trajectory.truncated)
    ]
    if not usable:
        return None
    return CriticEpisodes(
        usable,
        _pack(usable),
        [trajectory.trained_tokens for trajectory in usable],
        np.concatenate([_rewards(trajectory, settings) for trajectory in usable]),
    )


def _rewards(trajectory: Trajectory, settings: PPOSettings) -> Floats:
    rewards_L = token_rewards(trajectory, per_turn=settings.credit == "per_turn")
    if settings.overlong_buffer > 0:
        punishment = overlong_penalty(trajectory, settings.max_new_tokens, settings.overlong_buffer)
        rewards_L[-1] += settings.overlong_penalty * punishment
    return rewards_L


def token_rewards(trajectory: Trajectory, *, per_turn: bool) -> Floats:
    """Return the reward of each trained token of a trajectory, at the token that ended what was rewarded.

    The final reward stands at the last token. With `per_turn`, what was emitted after a call stands at the last token
    of that call, and the reward of the rollout as a whole (`loop/groups.py`) at the last token of all. A call without
    a trained token passes its reward to the token before it, or to the first one.
    """
    columns = trajectory.credited.column_R
    sizes = [record.trained_tokens if c >= 0 else 0 for record, c in zip(trajectory.records, columns, strict=True)]
    ends_R = np.cumsum(sizes)
    rewards_L = np.zeros(int(ends_R[-1]), np.float64)
    if not per_turn or trajectory.rewards is None:
        rewards_L[-1] = trajectory.reward
        return rewards_L
    turns_R = turn_numbers(trajectory.records)
    for turn, reward in enumerate(trajectory.rewards.turns_T):
        end = int(ends_R[np.flatnonzero(turns_R == turn)[-1]])
        rewards_L[max(0, end - 1)] += reward
    rewards_L[-1] += trajectory.rewards.whole
    return rewards_L


def minibatches(count: int, parts: int, seed: int) -> Iterator[list[int]]:
    """Yield the numbers 0 ... count - 1 in a random order that `seed` fixes, in at most `parts` parts of about one
    size."""
    order = np.random.default_rng(seed).permutation(count)
    for part in np.array_split(order, min(parts, count)):
        yield sorted(int(index) for index in part)


def _pack(trajectories: Sequence[Trajectory]) -> PackedTrees:
    tree = TokenTree()
    for number, trajectory in enumerate(trajectories):
        for record, column in zip(trajectory.records, trajectory.credited.column_R, strict=True):
            if column >= 0:
                tree.insert(record, number)
    return pack([tree])
