"""Mini-GRPO: group relative policy optimization (Shao et al. 2024, arXiv:2402.03300) of the agent that a person has.

    draw tasks -> G rollouts each -> advantages within the group -> one step

`MiniGRPO` is the algorithm that a person uses, `GRPOObjective.update` one step of it: rewards are shaped and compared,
packed beside what is imitated, scored by a teacher, and turned into a loss and optimizer steps (`take_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, get_args

import numpy as np

from ..errors import UserError
from ..gateway import ServedPolicy, load_tokenizer
from ..plugins import load_part
from ..policy import (
    Learner,
    LearnerSettings,
    Policy,
    PolicyError,
    Scorer,
    SeenTerms,
    adapter_folder,
    launched,
    load_model,
)
from .advantages import advantage_of, batch_normalized
from .batch import (
    Imitated,
    TrainingBatch,
    k1,
    make_batch,
    with_kl_penalty,
    with_overlong_penalty,
    with_separate_rewards,
)
from .groups import Group, group_metrics, has_signal
from .losses import find_loss, sum_to_go
from .policy_gradient import as_tensor, current_logprobs, loss_of, means, prepare_inputs
from .reinforcement import ReinforcementLearning
from .settings import BASE_TEACHER, GRPOSettings
from .sft import draw_demonstrations, observations
from .state import Objective

Backend = Literal["native", "trl"]

_TEACHER_ADAPTER: Final = "teacher"
"""Name that the teacher's adapter gets beside the policy's own."""


class MiniGRPO(ReinforcementLearning[GRPOSettings]):
    """Trains the model that it serves, by comparing the rollouts of a task with each other.

    Takes what `ReinforcementLearning` takes; `settings` is a `GRPOSettings`. Single settings may be given by name
    (`total_steps=10`), a published variant as `preset="dapo"`.

    Args:
        model: "embedded", a folder, a hub id, or a loaded Hugging Face model.
        tokenizer: its tokenizer; None takes the one beside the model.
        backend: what turns rewards into new weights: "native", or TRL's GRPOTrainer ("trl") in the same loop; see
            `mini_agentic_rl.integrations.trl.backend`.
        options: those of `ReinforcementLearning`, and settings by their names.

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
        UserError: the backend "trl" cannot do what the settings ask for.
    """

    settings_class = GRPOSettings

    def __init__(
        self, model: Any = "embedded", tokenizer: Any | None = None, *, backend: Backend = "native", **options: Any
    ) -> None:
        super().__init__(model, tokenizer, **options)
        if backend not in get_args(Backend):
            raise PolicyError(f"must be 'native' or 'trl', not {backend!r}", setting="backend")
        self._backend = backend
        if isinstance(self.settings, GRPOSettings):  # a verl configuration may ask for PPO
            self._check_sources()
        if backend == "trl":
            if launched() is not None:
                raise PolicyError("'trl' learns in one process: start it without torchrun", setting="backend")
            load_part("trl_backend", setting="backend").check_backend(
                self.settings, adapters=self._adapters or (), fixed_adapters=self._fixed_adapters or ()
            )

    @property
    def configuration(self) -> Mapping[str, Any]:
        return {**super().configuration, "backend": self._backend}

    def objective(self, policy: Policy, learner: LearnerSettings) -> Objective:
        """Return an optimizer for each adapter, and the loss of `settings`."""
        settings, served = self.settings, self.served
        learners = {adapter: policy.learner(learner, adapter) for adapter in policy.model.adapters}
        if served is None:
            return GRPOObjective(learners, settings)
        if self._backend == "trl":
            trl_backend = load_part("trl_backend", setting="backend")
            trl_objective: Objective = trl_backend.make_objective(policy.model, learners, served.tokenizer, settings)
            return trl_objective
        demonstrations = {}
        if settings.sft_coef > 0 and served.server is not None and self.train_dataset is not None:
            demonstrations = {
                adapter: partial(draw_demonstrations, start, self.train_dataset, served.server.renderer, settings)
                for adapter, start in self.warm_starts.items()
            }
        teachers = make_teachers(settings, served, learners)
        return GRPOObjective(learners, settings, teachers=teachers, demonstrations=demonstrations)

    def _check_sources(self) -> None:
        """Check that the settings have something to learn from, and load the adapter of a teacher.

        Raises:
            PolicyError: they have not.
        """
        settings, trained = self.settings, self._adapters or {}
        if settings.teacher == BASE_TEACHER and self._lora is None:
            raise PolicyError(
                "needs LoRA: under full training no weights without an adapter are left", setting="teacher"
            )
        if settings.sft_coef > 0 and not self.warm_starts:
            raise PolicyError(
                "needs demonstrations, and these tasks have none (in Python, give `warm_start`)", setting="sft_coef"
            )
        if settings.separate_rewards and len(trained) > 1:
            raise PolicyError("of several adapters each has one reward, that of its name", setting="separate_rewards")
        fixed = self._fixed_adapters or {}
        if self._lora is not None:
            teacher = settings.teacher
            is_folder = teacher is not None and teacher not in (BASE_TEACHER, *trained, *fixed)
            folder = adapter_folder(teacher) if teacher is not None and is_folder else None
            self._fixed_adapters = {**fixed, **({} if folder is None else {_TEACHER_ADAPTER: folder})} or None


class GRPOObjective(Objective):
    """Compares the rollouts of a task, or of a batch, with each other."""

    def __init__(
        self,
        learners: Mapping[str, Learner],
        settings: GRPOSettings,
        *,
        teachers: Mapping[str, Scorer] | None = None,
        demonstrations: Mapping[str, Callable[[int], list[Imitated]]] | None = None,
    ) -> None:
        """
        Args:
            teachers: by the adapters that have one.
            demonstrations: for each adapter that imitates some beside its rollouts, a function from the number of an
                optimizer step to those of that step.

        Raises:
            ValueError: the settings name a teacher, and there is none.
        """
        super().__init__(learners)
        if settings.teacher is not None and not teachers:
            raise ValueError(f"no teacher is given for the setting teacher={settings.teacher!r}")
        self._settings = settings
        self._teachers = teachers or {}
        self._demonstrations = demonstrations or {}

    def has_signal(self, group: Group) -> bool:
        """Return True if the rewards differ; without a baseline or with a teacher, if anything can be trained."""
        settings = self._settings
        if not settings.compares_rewards:
            return any(trajectory.trained_tokens for trajectory in group.trajectories)
        apart = with_separate_rewards([group], settings.separate_rewards, settings.separate_reward_weights)
        return has_signal(apart[0].credits)

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        """Shape the rewards, compare them, and take `epochs_per_batch` steps; see `Objective.update`."""
        settings, learner = self._settings, self.learners[adapter]
        metrics = group_metrics(groups, self.has_signal)
        shaped = with_separate_rewards(groups, settings.separate_rewards, settings.separate_reward_weights)
        if settings.overlong_buffer > 0:
            shaped = with_overlong_penalty(
                shaped, settings.max_new_tokens, settings.overlong_buffer, settings.overlong_penalty
            )
        # A baseline compares whole rollouts, so the penalty is one number for each rollout. Without one, each token has
        # its own penalty plus those of all later tokens.
        is_penalised = settings.kl_coef > 0 and settings.kl_in_reward
        if is_penalised and settings.baseline != "none":
            shaped, metrics["kl"] = with_kl_penalty(shaped, learner, settings.kl_coef)
        imitated = observations(groups, settings.echo_coef) if settings.echo_coef > 0 else []
        if adapter in self._demonstrations:
            imitated += self._demonstrations[adapter](learner.steps)
        batch = _packed_batch(shaped, settings, imitated)
        if batch is not None and is_penalised and settings.baseline == "none":
            k1_S = k1(batch.packed, learner)
            metrics["kl"] = float(k1_S[: batch.sampled_terms].mean()) if batch.calls else 0.0
            penalty_S = settings.kl_coef * sum_to_go(k1_S, batch.packed.trajectory_S)
            batch = batch.with_advantages(batch.inputs.advantages_S.numpy() - penalty_S)
        batch = _compared_over_batch(batch, settings)
        if batch is None:
            return metrics
        metrics |= batch.metrics
        batch = batch.with_advantages(np.float32(settings.reward_coef) * batch.inputs.advantages_S.numpy())
        if adapter in self._teachers:
            batch, distance = with_teacher(batch, self._teachers[adapter], settings)
            metrics |= distance
        seen, version = SeenTerms(batch.packed.term_count), learner.version
        metrics |= take_steps(learner, batch, settings, seen)
        self.note_seen(batch, version, seen)
        return metrics


def batch_of(groups: Sequence[Group], settings: GRPOSettings) -> TrainingBatch | None:
    """Return the trainable part of `groups` under `settings`; None when there is none."""
    apart = with_separate_rewards(groups, settings.separate_rewards, settings.separate_reward_weights)
    return _compared_over_batch(_packed_batch(apart, settings), settings)


def take_steps(
    learner: Learner, batch: TrainingBatch, settings: GRPOSettings, seen: SeenTerms | None = None
) -> dict[str, float]:
    """Take `epochs_per_batch` optimizer steps on one batch; return the metrics of the last, those of mismatch of the
    first: its pass is on-policy, so any difference from the sampler's log-probabilities is numerical.

    Args:
        seen: filled with the numbers of the first pass at each term.
    """
    packed, loss = batch.packed, loss_of(settings)
    if settings.teacher is not None and settings.distillation == "top_k":
        loss = replace(loss, teacher_coef=settings.teacher_coef)
    over_rollouts = loss.chosen.over_rollouts
    inputs, old_S = prepare_inputs(learner, packed, loss, settings, batch.inputs)
    metrics: dict[str, float] = {}
    mismatch: dict[str, float] = {}
    for epoch in range(settings.epochs_per_batch):
        if over_rollouts is not None:
            is_known = epoch == 0 and inputs.old_logprobs_S is not None
            current_S = old_S if is_known else current_logprobs(learner, packed)
            inputs = replace(inputs, rollout_S=as_tensor(over_rollouts(current_S, old_S, packed.trajectory_S)))
        terms = SeenTerms(packed.term_count) if seen is None or epoch > 0 else seen
        sums = learner.forward_backward(
            packed, loss, inputs, entropy_gradient="entropy_gradient" in loss.needs, seen=terms
        )
        metrics = means(sums) | learner.bounded_step(packed, batch.sampled_terms, settings.max_update_kl, terms)
        if epoch == 0:
            mismatch = {name: value for name, value in metrics.items() if name.startswith("mismatch/")}
    return metrics | mismatch


def make_teachers(settings: GRPOSettings, served: ServedPolicy, learners: Mapping[str, Learner]) -> dict[str, Scorer]:
    """Return the teacher of each adapter: the model without an adapter, an adapter, or another model in the number
    format and on the device of the policy's; empty where the settings ask for none.

    Raises:
        PolicyError: the teacher cannot be loaded, or has another tokenizer.
    """
    teacher, model = settings.teacher, served.policy.model
    if teacher is None:
        return {}
    name = None if teacher == BASE_TEACHER else _TEACHER_ADAPTER if _TEACHER_ADAPTER in model.versions else teacher
    if name is None or name in model.versions:
        return {adapter: learner.scorer(name) for adapter, learner in learners.items()}
    try:
        if served.tokenizer.get_vocab() != load_tokenizer(teacher).get_vocab():
            raise PolicyError(f"{teacher} has another tokenizer than {served.name}: no token is compared")
        other = load_model(teacher, device=str(model.device))
    except UserError as error:
        raise PolicyError(error.text, setting="teacher") from error
    other.base.to(model.dtype).requires_grad_(False)
    return {
        adapter: Scorer(
            other,
            other.adapters[0],
            max_tokens=learner.settings.max_batch_tokens,
            head_rows=learner.settings.head_rows,
        )
        for adapter, learner in learners.items()
    }


def with_teacher(
    batch: TrainingBatch, teacher: Scorer, settings: GRPOSettings
) -> tuple[TrainingBatch, dict[str, float]]:
    """Return the batch with a teacher's log-probabilities in it, and metrics about them. On the torch thread.

    On-policy distillation (Agarwal et al. 2024, arXiv:2306.13649; Gu et al. 2024, arXiv:2306.08543; Lu and Thinking
    Machines 2025, "On-policy distillation") minimises the reverse divergence KL(pi || pi_T) in the states that the
    policy reaches:

        sampled    A_t = reward_coef A_t + teacher_coef (log pi_T(token) - log pi_old(token))
        top_k      A_t = reward_coef A_t, and teacher_coef KL(pi || pi_T) of the state is added to the loss

    The first is minus k1 (`losses.kl`) as the reward of the sampled token alone. Under the policy gradient its mean is
    the gradient of the second, which takes the K most likely tokens of the teacher (`policy/head.py`) and so varies
    less, for more memory.
    """
    if settings.distillation == "top_k":
        top = teacher.likeliest(batch.packed, settings.teacher_top_k)
        inputs = replace(batch.inputs, teacher_tokens_SK=top.tokens_SK, teacher_logprobs_SK=top.logprobs_SK)
        return replace(batch, inputs=inputs), {}
    teacher_S = teacher.logprobs(batch.packed).double().cpu().numpy()
    distance_S = batch.packed.behaviour_logprobs_S.astype(np.float64) - teacher_S
    distance_S[batch.sampled_terms :] = 0.0
    weights_S = batch.inputs.weights_S.numpy()
    total = weights_S.sum()
    metrics = {"teacher/kl": float((weights_S * distance_S).sum() / total)} if total > 0 else {}
    return batch.with_advantages(batch.inputs.advantages_S.numpy() - settings.teacher_coef * distance_S), metrics


def _packed_batch(
    groups: Sequence[Group], settings: GRPOSettings, imitated: Sequence[Imitated] = ()
) -> TrainingBatch | None:
    """Return the trainable part of `groups`, packed with the imitated tokens, before advantages are compared over the
    batch; None if there is nothing."""
    loss = find_loss(settings.policy_loss)
    # A call whose advantage is 0 still has a gradient of its own, a place in a mean over the batch, or in its rollout.
    keep_zero_advantage = (
        settings.kl_coef > 0
        or settings.entropy_coef > 0
        or settings.teacher is not None
        or settings.over_batch
        or bool(loss.needs)
        or loss.over_rollouts is not None
        or settings.importance_correction == "sequence"
    )
    return make_batch(
        groups,
        advantage_of(settings.baseline, settings.advantage_normalization if settings.normalize_advantage else None),
        settings.loss_aggregation,
        max_length=settings.max_trajectory_tokens,
        mask_truncated=settings.mask_truncated,
        keep_zero_advantage=keep_zero_advantage,
        compared=settings.compares_rewards,
        averages_all=not settings.dynamic_sampling,  # it has drawn other groups in their place
        imitated=imitated,
    )


def _compared_over_batch(batch: TrainingBatch | None, settings: GRPOSettings) -> TrainingBatch | None:
    """Return the batch with its advantages normalised over it; None if nothing is left that has a gradient."""
    if batch is None or not settings.over_batch or not batch.calls:
        return batch
    weights_S = batch.inputs.weights_S.numpy().astype(np.float64)
    advantages_S = batch_normalized(batch.inputs.advantages_S.numpy().astype(np.float64), weights_S)
    # Imitated terms have no part in the mean, and keep an advantage of 0.
    advantages_S = np.where(weights_S > 0, advantages_S, 0.0)
    learns = bool(loss_of(settings).needs) or settings.teacher is not None
    if not advantages_S.any() and not learns and batch.sampled_terms == batch.packed.term_count:
        return None
    return batch.with_advantages(advantages_S)
