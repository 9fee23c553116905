"""The settings of a training: its loop, and the policy's part of its loss. Reading them needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ModelWrapValidatorHandler, model_validator
from typing_extensions import Self

from ..losses import (
    PRESETS,
    Aggregation,
    ImportanceCorrection,
    KLEstimator,
    PolicyLossName,
    PresetName,
    is_preset,
)
from ..settings import OnFailure, RolloutSettings

Baseline = Literal["group", "leave_one_out", "none"]
"""Baseline of a reward: the mean of its group, the mean of the group's other rollouts, or nothing."""

CreditMode = Literal["broadcast", "last_call", "per_turn", "discounted"]
"""Choice of the rollout's reward that its calls are trained with; see `credit.py`."""

Curriculum = Literal["none", "pass_rate", "level"]
"""Order in which tasks are drawn; see `curriculum.py` and `level_curriculum.py`."""

Normalization = Literal["group", "batch", "mean"]
"""Divisor of advantages: a standard deviation, of the group or of the batch, or the mean of the group's rewards."""


class LoopSettings(RolloutSettings):
    """The loop: how much is sampled, how it is turned into a loss, how often it is measured."""

    preset: PresetName = "grpo"
    """The published variant whose settings are the defaults (see `presets.py`); a setting that is given wins."""

    total_steps: int = Field(default=30, ge=0)
    """Reinforcement-learning steps; each draws new tasks. 0 leaves reinforcement learning out."""
    total_epochs: int | None = Field(default=None, ge=0)
    """Passes over the training tasks, in place of the number of steps."""
    tasks_per_step: int = Field(default=8, ge=1)
    """Tasks drawn in each step."""
    samples_per_prompt: int = Field(default=8, ge=1)
    """Rollouts of each task: the group whose rewards are compared with each other; 1 needs `baseline=none`."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training rollouts."""
    credit: CreditMode = "broadcast"
    """Reward that each call of a rollout is trained with: the final one (`broadcast`), the final one for the last call
    alone (`last_call`), the final one plus what was emitted after the call (`per_turn`), or the discounted sum of what
    was emitted from the call on (`discounted`)."""
    credit_discount: float = Field(default=0.95, gt=0, le=1)
    """Discount per call of `credit=discounted`; 1 discounts nothing."""
    dynamic_sampling: bool = False
    """Draw further tasks in place of those whose rollouts all got the same reward (DAPO; Yu et al. 2025, section
    3.2)."""
    max_sampling_rounds: int = Field(default=4, ge=1)
    """At most this often a step draws tasks with `dynamic_sampling`; what it has by then is trained on."""
    curriculum: Curriculum = "none"
    """Order of the tasks: each once an epoch (`none`), those more often that are solved about half of the time
    (`pass_rate`), or so by their levels, each task of a level once an epoch of it (`level`)."""
    curriculum_floor: float = Field(default=0.1, gt=0, le=1)
    """Least weight of a task with `curriculum=pass_rate`, or of a level with `level`, against 1 for the most wanted
    ones: what is always or never solved is still tried now and then."""
    replay_groups: int = Field(default=0, ge=0)
    """Groups of earlier steps that join each step: those with the fewest right rollouts, of which only these are
    trained, weighed by how likely they are today (`replay.py`); the metric `staleness/kl` says how far the policy has
    moved since."""
    replay_steps: int = Field(default=4, ge=1)
    """Steps for which a group can be replayed."""
    expert_prefix: bool = False
    """Try a task that all rollouts failed a second time with the first calls of a right rollout of it, or of its
    demonstration: the gateway answers these calls, and only what follows is trained."""
    epochs_per_batch: int = Field(default=1, ge=1)
    """Passes over each batch of rollouts."""
    max_staleness: int = Field(default=0, ge=0)
    """Sampling may run this many updates ahead of learning: complete groups wait in the store and are learnt by weights
    at most so much newer than those that sampled them; older ones are dropped. `importance_correction` is then `token`
    unless another one, or a loss that masks by itself (`dppo_tv`, `dppo_kl`), is chosen. 0 samples, then learns, in
    turns, each rollout by the weights that learn from it."""
    sampling_share: float = Field(default=0.5, gt=0, lt=1)
    """With `max_staleness` above 0: sampling's share of the time, on the device that both compute on, while learning
    and sampling both have something to do."""
    on_failure: OnFailure = "drop"
    """Fate of a rollout that fails: it is left out (`drop`), counts as reward 0 if it has called the model
    (`zero`), or is tried again and left out when it fails for good (`retry`)."""
    max_attempts: int = Field(default=3, ge=1)
    """At most this many attempts at a rollout with `on_failure=retry`."""

    baseline: Baseline = "group"
    """Baseline of a reward: the mean of its group, the mean of the group's others (`leave_one_out`), or
    nothing."""
    normalize_advantage: bool = True
    """Divide advantages."""
    advantage_normalization: Normalization = "group"
    """By the standard deviation of the group, by that of the batch, whose mean is then subtracted too (REINFORCE++), or
    by the mean reward of the group (MaxRL)."""
    policy_loss: PolicyLossName = "clip"
    """Objective that is maximised: the clipped ratio of each token (`clip`), that of each rollout (`gspo`), the
    log-probability under a clipped weight (`cispo`), or the ratio of each token within a trust region of the
    divergence, in total variation (`dppo_tv`) or Kullback-Leibler divergence (`dppo_kl`)."""
    clip_ratio: float = Field(default=0.2, gt=0, le=1)
    """Lower bound of the ratio is 1 minus this (PPO; Schulman et al. 2017, equation 7); 1 sets no bound."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Upper bound is 1 plus this; by default as much as the lower one (DAPO; Yu et al. 2025, section 3.1)."""
    divergence_bound: float = Field(default=0.2, gt=0)
    """Divergence of a token's probability beyond which `policy_loss=dppo_tv` or `dppo_kl` lets no step lead on (DPPO;
    Qi et al. 2026)."""
    loss_aggregation: Aggregation = "token"
    """Average of the token losses: over all tokens (`token`), per rollout first (`sequence`: what GSPO takes, and GRPO
    as published, with which agents whose rollouts differ in length unlearn to answer), or by a constant (Dr. GRPO)."""
    max_trajectory_tokens: int = Field(default=1024, ge=1)
    """The constant that `loss_aggregation=dr_grpo` divides by: about the most tokens a rollout samples."""
    importance_correction: ImportanceCorrection = "none"
    """Weigh by what learner and sampler differ by, for each `token` or the whole rollout (`sequence`), or leave out
    tokens (`icepop`) or rollouts (`geometric`) on which they differ too much; the ratio is then taken to the learner's
    numbers. `none` takes it to the sampler's. Costs a forward pass."""
    importance_cap: float = Field(default=2.0, gt=0)
    """The most that such a weight can be; beyond it `icepop` and `geometric` mask."""
    importance_floor: float = Field(default=0.5, ge=0)
    """The least that it can be under `icepop` and `geometric`, which mask below it."""
    max_update_kl: float = Field(default=0.1, ge=0)
    """KL divergence, in nats a sampled token, by which an optimizer step may move the policy; a longer step is
    shortened until it does no more (the line search of TRPO; Schulman et al. 2015). 0 bounds nothing."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the reference policy: the policy that reinforcement learning began with, after a
    warm-up or from a saved adapter (with `backend=trl`, the model with the adapter off)."""
    kl_estimator: KLEstimator = "k3"
    """Estimator of it that is differentiated, where it is in the loss: k2 has the gradient of the reverse divergence,
    k3 that of the forward one, k1 none."""
    kl_in_reward: bool = False
    """Take it, as k1, off the reward instead of adding it to the loss."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus: the mean entropy (nats) of the trained tokens' distributions, to be maximised."""
    mask_truncated: bool = False
    """Leave rollouts that ended at a length bound out of the loss; they still count in their group's mean."""
    overlong_buffer: float = Field(default=0.0, ge=0, le=1)
    """The last part of `max_new_tokens`, as a share, in which a call's length is punished, the more the longer (DAPO;
    Yu et al. 2025, equation 13); 0 punishes nothing."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """Penalty, taken off the reward, of a call as long as `max_new_tokens`."""

    eval_size: int | None = Field(default=200, ge=1)
    """Number of held-out tasks that measure the accuracy, before, between and after; in Python, None takes all."""
    eval_every: int = Field(default=0, ge=0)
    """Measure the accuracy every this many steps as well; 0 does so at the beginning and the end only."""
    transfer_size: int = Field(default=100, ge=0)
    """Number of tasks of the data set's split `transfer`, where it has one, that are measured before and after as well,
    at most as many as held-out tasks; 0 leaves them out."""
    validation_size: int = Field(default=0, ge=0)
    """Tasks of the split `val` that choose the weights that are kept: the best of those before the first step, every
    `validation_every` steps and after the last. 0 keeps the last weights."""
    validation_every: int = Field(default=2, ge=1)
    """Steps between validations."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after so many validations in a row that were no better than the best; by default never."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Steps between checkpoints."""
    deterministic: bool = False
    """Sample each request alone, so that a run is repeated exactly (float32 on one CPU); slow."""

    def steps(self, tasks: int) -> int:
        """Return the steps of a run over so many tasks: the last one of an epoch may reach into the next."""
        return self.total_steps if self.total_epochs is None else self.total_epochs * -(-tasks // self.tasks_per_step)

    @property
    def kl_in_loss(self) -> bool:
        """True if the loss has a KL penalty."""
        return self.kl_coef > 0 and not self.kl_in_reward

    @property
    def over_batch(self) -> bool:
        """True if advantages are normalised over the batch."""
        return self.normalize_advantage and self.advantage_normalization == "batch"

    @model_validator(mode="wrap")
    @classmethod
    def _fill_in_preset(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Settings of the preset count as not given: another preset replaces them."""
        if not isinstance(values, Mapping):
            return handler(values)
        name = values.get("preset", "grpo")
        preset = PRESETS[name] if isinstance(name, str) and is_preset(name) else None
        if preset is None:
            return handler(values)
        settings = handler({**_implied(preset, values), **preset, **values})
        settings.model_fields_set.intersection_update(values)
        return settings

    @model_validator(mode="after")
    def _has_bounds_that_leave_something(self) -> Self:
        masks = self.importance_correction in ("icepop", "geometric")
        if masks and self.importance_floor >= self.importance_cap:
            raise ValueError("`importance_floor` has to be below `importance_cap`")
        return self

    @model_validator(mode="after")
    def _repeats_what_can_be_repeated(self) -> Self:
        if self.deterministic and self.max_staleness:
            raise ValueError(
                "`deterministic` repeats a run exactly, but with `max_staleness` the time that sampling takes decides "
                "which weights sample: set `max_staleness=0` with it"
            )
        return self

    @model_validator(mode="after")
    def _knows_which_tasks_failed(self) -> Self:
        if self.expert_prefix and self.max_staleness:
            raise ValueError(
                "`expert_prefix` tries the failed tasks of a step again, and with `max_staleness` there are no whole "
                "steps: set `max_staleness=0` with it"
            )
        return self

    @model_validator(mode="after")
    def _has_groups_to_draw_again(self) -> Self:
        if self.dynamic_sampling and self.baseline == "none":
            raise ValueError("`dynamic_sampling` draws again for groups of equal rewards: set `baseline=group` with it")
        return self


def _implied(preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that follow from what a preset sets and what is given: a loss of whole rollouts is averaged
    over them, and a run that samples ahead is corrected.

    DPPO masks by the divergence from the weights that sampled, so that its ratio stays the one to these.
    """
    loss = str(given.get("policy_loss", preset.get("policy_loss", "")))
    implied = {"loss_aggregation": "sequence"} if loss == "gspo" else {}
    if given.get("max_staleness") in (None, 0, "0") or loss.startswith("dppo"):
        return implied
    return implied | {"importance_correction": "token"}
