"""The settings of all algorithms, and of the warm-up. Reading them needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, ModelWrapValidatorHandler, model_validator
from typing_extensions import Self

from ..config import COMMAS, SeedSettings, Settings
from ..gateway import AnswerSettings
from ..policy import Schedule
from .advantages import AdvantageName, Normalization
from .losses import LOSSES, Aggregation, ImportanceCorrection, KLEstimator, PolicyLossName, find_loss
from .presets import PRESETS, PresetName, is_preset

OnFailure: TypeAlias = Literal["drop", "zero", "retry"]
"""Treatment of a rollout that failed: left out, counted as reward 0, or run again."""


class RolloutSettings(AnswerSettings, SeedSettings):
    """Sampling of rollouts."""

    max_new_tokens: int = Field(default=128, ge=1)
    """Maximum number of sampled tokens in one model call."""
    rollout_timeout: float | None = Field(default=300.0, gt=0)
    """Wall-clock limit of a rollout, in seconds; a longer one is ended and has failed."""
    gateway_port: int = Field(default=0, ge=0, le=65535)
    """Port of the endpoint that agents call; 0 takes a free one. A fixed one suits agents whose `base_url` is fixed."""
    gateway_host: str | None = None
    """Address that this endpoint listens on; 0.0.0.0 admits agents on other machines. It then requires a key, which is
    made for the run and which agents find with its address. By default this machine's loopback, or with runners on Ray
    its address in the cluster."""
    gateway_url: str | None = None
    """URL by which agents reach it, as http://learner:8000, if that is not its address; by default, for 0.0.0.0, the
    name of this machine and the port."""


class WarmStartSettings(Settings):
    """Amount of imitation before reinforcement learning."""

    examples: int = Field(default=64, ge=0, json_schema_extra={"option": "--sft-examples"})
    """Maximum number of generated example conversations to imitate before reinforcement learning; 0 turns it off."""
    until: Literal["ready", "examples"] = Field(default="ready", json_schema_extra={"option": "--sft-until"})
    """End the warm-up when the policy is ready for rewards (`ready`: 15 to 50 % of single tries at some tasks succeed,
    and at least 25 points more of eight), or after all examples (`examples`)."""
    batch_size: int = Field(default=4, ge=1, json_schema_extra={"option": "--sft-batch-size"})
    """Conversations per optimizer step of the imitation."""
    learning_rate: float = Field(default=1e-3, gt=0, json_schema_extra={"option": "--sft-learning-rate"})
    """Peak learning rate of the imitation."""
    warmup_steps: int = Field(default=2, ge=0)
    """Steps of the learning-rate warm-up."""
    schedule: Schedule = Field(default="constant", json_schema_extra={"option": "--sft-lr-schedule"})
    """Learning-rate schedule of the imitation."""


Messages = Sequence[dict[str, Any]]
_EVERY: Final = 16


@dataclass(frozen=True)
class WarmStart:
    """Conversations that an adapter imitates before reinforcement learning (`sft.py`)."""

    demonstration: Callable[[Mapping[str, Any]], Messages]
    """Returns the OpenAI messages of a task done well."""
    tools: Sequence[dict[str, Any]] = ()
    """Tools that the agent sends with every call."""
    settings: WarmStartSettings = field(default_factory=WarmStartSettings)
    besides: Sequence[Messages] = ()
    """Conversations that are no task: one is put before the first example, and one before each 16th after it."""

    def conversations(self, tasks: Sequence[Mapping[str, Any]]) -> list[Messages]:
        """Return the demonstrations of tasks, with the conversations of `besides` in between."""
        conversations: list[Messages] = []
        for number, task in enumerate(tasks):
            if self.besides and number % _EVERY == 0:
                conversations.append(self.besides[number // _EVERY % len(self.besides)])
            conversations.append(self.demonstration(task))
        return conversations


CreditMode = Literal["broadcast", "last_call", "per_turn", "discounted"]
"""Choice of the rollout's reward that its calls are trained with; see `groups.py`."""

Curriculum = Literal["none", "pass_rate"]
"""Order in which tasks are drawn; see `tasks.py`."""


class LoopSettings(RolloutSettings):
    """The loop: sampling, loss and measuring."""

    preset: PresetName = "grpo"
    """Published variant whose settings are the defaults (see `presets.py`); a setting that is given wins."""

    total_steps: int = Field(default=30, ge=0)
    """Reinforcement-learning steps; each draws new tasks. 0 turns reinforcement learning off."""
    total_epochs: int | None = Field(default=None, ge=0)
    """Passes over the training tasks, in place of the number of steps."""
    tasks_per_step: int = Field(default=8, ge=1)
    """Tasks drawn in each step."""
    samples_per_prompt: int = Field(default=8, ge=1)
    """Rollouts of each task, the group within which rewards are compared; 1 needs `baseline=none`."""
    temperature: float = Field(default=1.0, gt=0, le=2)
    """Sampling temperature of training rollouts."""
    credit: CreditMode = "broadcast"
    """Reward that each call of a rollout is trained with: the final one (`broadcast`), the final one for the last call
    alone (`last_call`), the final one plus the rewards emitted after the call (`per_turn`), or the discounted sum of
    the rewards emitted from the call on (`discounted`)."""
    credit_discount: float = Field(default=0.95, gt=0, le=1)
    """Discount per call with `credit=discounted`; 1 turns it off."""
    dynamic_sampling: bool = False
    """Replace tasks whose rollouts all got the same reward by further tasks (DAPO; Yu et al. 2025, section 3.2)."""
    max_sampling_rounds: int = Field(default=4, ge=1)
    """Maximum number of draws of a step with `dynamic_sampling`; it then trains on the groups that it has."""
    curriculum: Curriculum = "none"
    """Order of the tasks: each once an epoch (`none`), or more often those that are solved about half of the time
    (`pass_rate`)."""
    expert_prefix: bool = False
    """Try a task that all rollouts failed a second time, with the first calls of a right rollout of it or of its
    demonstration: the gateway answers these calls, and only the later ones are trained."""
    epochs_per_batch: int = Field(default=1, ge=1)
    """Passes over each batch of rollouts."""
    max_staleness: int = Field(default=0, ge=0)
    """Maximum number of updates by which sampling runs ahead of learning: complete groups wait in the store, and groups
    sampled by older weights are dropped. `importance_correction` is then `token` unless another one, or a loss that
    masks by itself (`dppo_tv`), is chosen. 0 samples and learns in turns, always on-policy."""
    on_failure: OnFailure = "drop"
    """Treatment of a rollout that fails: leave it out (`drop`), count it as reward 0 if it has called the model
    (`zero`), or run it again and leave it out when it fails for good (`retry`)."""
    max_attempts: int = Field(default=3, ge=1)
    """Maximum number of attempts at a rollout with `on_failure=retry`."""

    baseline: AdvantageName = "group"
    """Baseline of a reward: the mean of its group (`group`), the mean of the group's other rollouts (`leave_one_out`),
    nothing (`none`), or a function of your own as `module:function` (`algorithm/advantages.py`)."""
    normalize_advantage: bool = True
    """Divide advantages."""
    advantage_normalization: Normalization = "group"
    """Divisor of advantages: the standard deviation of the group, that of the batch, whose mean is then subtracted too
    (REINFORCE++), or the mean reward of the group (MaxRL)."""
    policy_loss: PolicyLossName = "clip"
    """Objective to maximise: the clipped ratio of each token (`clip`) or of each rollout (`gspo`), the log-probability
    under a clipped weight (`cispo`), the ratio of each token within a trust region of total variation (`dppo_tv`), or a
    function of your own as `module:function` (`algorithm/losses.py`)."""
    clip_ratio: float = Field(default=0.2, gt=0, le=1)
    """1 minus the lower bound of the ratio (PPO; Schulman et al. 2017, equation 7); 1 sets no bound."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Upper bound of the ratio minus 1; by default `clip_ratio` (DAPO; Yu et al. 2025, section 3.1)."""
    divergence_bound: float = Field(default=0.2, gt=0)
    """Divergence of a token's probability beyond which `policy_loss=dppo_tv` masks steps that lead further away (DPPO;
    Qi et al. 2026)."""
    loss_aggregation: Aggregation = "token"
    """Average of the token losses: over all tokens (`token`), over each rollout first (`sequence`: GSPO, and GRPO as
    published, with which agents whose rollouts differ in length unlearn to answer), or by a constant (`dr_grpo`)."""
    max_trajectory_tokens: int = Field(default=1024, ge=1)
    """Divisor of `loss_aggregation=dr_grpo`: about the maximum number of tokens that a rollout samples."""
    importance_correction: ImportanceCorrection = "none"
    """Correction of the difference between learner and sampler: weigh each `token` or whole rollouts (`sequence`), or
    mask tokens on which they differ too much (`icepop`). The ratio is then that to the learner's log-probabilities,
    with `none` to the sampler's. Costs a forward pass."""
    importance_cap: float = Field(default=2.0, gt=0)
    """Upper bound of such a weight; above it `icepop` masks."""
    importance_floor: float = Field(default=0.5, ge=0)
    """Lower bound of such a weight with `icepop`, which masks below it."""
    max_update_kl: float = Field(default=0.1, ge=0)
    """Maximum KL divergence of an optimizer step, in nats per sampled token; a longer step is shortened (line search of
    TRPO; Schulman et al. 2015). 0 sets no bound."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the reference policy: the policy that reinforcement learning began with, after a
    warm-up or from a saved adapter (with `backend=trl`, the model with the adapter off)."""
    kl_estimator: KLEstimator = "k3"
    """Estimator of that divergence in the loss: k2 has the gradient of the reverse divergence, k3 that of the forward
    one, k1 none."""
    kl_in_reward: bool = False
    """Subtract the KL penalty, as k1, from the reward instead of adding it to the loss."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus: the mean entropy (nats) of the distributions of the trained tokens."""
    mask_truncated: bool = False
    """Leave truncated rollouts out of the loss; they still count in the mean of their group."""
    overlong_buffer: float = Field(default=0.0, ge=0, le=1)
    """Last share of `max_new_tokens` in which the length of a call is penalised linearly (DAPO; Yu et al. 2025,
    equation 13); 0 turns it off."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """Penalty of a call as long as `max_new_tokens`, subtracted from the reward."""

    eval_size: int | None = Field(default=200, ge=1)
    """Number of held-out tasks that measure the accuracy before, between and after steps; in Python, None takes all."""
    eval_every: int = Field(default=0, ge=0)
    """Steps between measurements of the accuracy; 0 measures at the beginning and the end only."""
    transfer_size: int = Field(default=100, ge=0)
    """Number of tasks of the data set's split `transfer`, if it has one, to measure before and after as well, at most
    as many as held-out tasks; 0 turns it off."""
    validation_size: int = Field(default=0, ge=0)
    """Number of tasks of the split `val` that choose the weights to keep: the best of those before the first step,
    every `validation_every` steps and after the last. 0 keeps the last weights."""
    validation_every: int = Field(default=2, ge=1)
    """Steps between validations."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after so many validations in a row without an improvement; by default never."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Steps between checkpoints."""
    deterministic: bool = False
    """Sample each request alone, so that a run can be repeated exactly (float32 on one CPU); slow."""

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
    def _fits_together(self) -> Self:
        if self.importance_correction == "icepop" and self.importance_floor >= self.importance_cap:
            raise ValueError("`importance_floor` has to be below `importance_cap`")
        if self.deterministic and self.max_staleness:
            raise ValueError(
                "`deterministic` repeats a run exactly, but with `max_staleness` the time that sampling takes decides "
                "which weights sample: set `max_staleness=0` with it"
            )
        if self.expert_prefix and self.max_staleness:
            raise ValueError(
                "`expert_prefix` tries the failed tasks of a step again, and with `max_staleness` there are no whole "
                "steps: set `max_staleness=0` with it"
            )
        if self.dynamic_sampling and self.baseline == "none":
            raise ValueError("`dynamic_sampling` draws again for groups of equal rewards: set `baseline=group` with it")
        return self


def _implied(preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that follow from a preset and the given settings: GSPO averages over rollouts, and a run that
    samples ahead is corrected, except under DPPO, which masks by the divergence from the weights that sampled."""
    loss = str(given.get("policy_loss", preset.get("policy_loss", "")))
    implied = {"loss_aggregation": "sequence"} if loss == "gspo" else {}
    if given.get("max_staleness") in (None, 0, "0") or loss.startswith("dppo"):
        return implied
    return implied | {"importance_correction": "token"}


Distillation = Literal["sampled", "top_k"]
"""Ways to follow a teacher; see `grpo.py`."""

BASE_TEACHER: Final = "base"
"""`teacher` for the model without its adapter."""


class GRPOSettings(LoopSettings):
    """The loop as in `LoopSettings`, and sources of learning besides rewards."""

    separate_rewards: Annotated[list[str], COMMAS] = Field(default=[])
    """Comma-separated names of rewards to compare separately and then sum (GDPO; Liu et al. 2026); `all` takes every
    name that rollouts have, a sum of others too, except turns, calls and failed_calls. By default the primary reward
    is compared."""
    separate_reward_weights: Annotated[list[float], COMMAS] = Field(default=[])
    """Weights of these rewards, in their order; by default all are equal."""
    reward_coef: float = Field(default=1.0, ge=0)
    """Weight of the advantages from rewards; 0 learns from a teacher or by imitation alone."""
    echo_coef: float = Field(default=0.0, ge=0)
    """Weight of predicting the messages of tools and users in the rollouts (ECHO; Shrivastava et al. 2026: 0.05)."""
    sft_coef: float = Field(default=0.0, ge=0)
    """Weight of imitating demonstrations in each step, beside its rollouts."""
    sft_per_step: int = Field(default=4, ge=1)
    """Demonstrations of each optimizer step with `sft_coef`."""
    teacher: str | None = None
    """Teacher to distil from, token by token, in the policy's own rollouts: `base` (the model without its adapter),
    a model's id or folder, or the folder of an adapter."""
    teacher_coef: float = Field(default=1.0, gt=0)
    """Weight of the divergence from the teacher."""
    distillation: Distillation = "sampled"
    """Compare with the `teacher` on the sampled token (`sampled`), or on its most likely tokens in each state
    (`top_k`)."""
    teacher_top_k: int = Field(default=20, ge=0)
    """Number of most likely tokens; 0 is the whole vocabulary."""

    @property
    def compares_rewards(self) -> bool:
        """True if a group of equal rewards teaches nothing."""
        return self.baseline != "none" and self.teacher is None

    @model_validator(mode="after")
    def _has_a_source_of_learning(self) -> Self:
        if self.samples_per_prompt == 1 and self.baseline != "none" and self.reward_coef > 0:
            raise ValueError(
                f"`samples_per_prompt=1` leaves nothing to compare with under `baseline={self.baseline}`: set 2 or "
                "more, or `baseline=none`, as reinforce++ has it"
            )
        if self.teacher is None and not (self.reward_coef or self.echo_coef or self.sft_coef):
            raise ValueError("`reward_coef=0` leaves nothing to learn from: give a `teacher`, or what to imitate")
        names, weights = self.separate_rewards, self.separate_reward_weights
        if weights and len(weights) != len(names):
            raise ValueError(f"{len(weights)} `separate_reward_weights` for {len(names)} `separate_rewards`")
        if names and self.credit not in ("broadcast", "last_call"):
            raise ValueError(f"`credit={self.credit}` takes one reward, and not `separate_rewards`")
        if names and self.normalize_advantage and self.advantage_normalization != "batch":
            raise ValueError(
                "`separate_rewards` are divided each by its own deviation: set `advantage_normalization=batch`, or "
                "`normalize_advantage=False`"
            )
        return self


class PPOSettings(LoopSettings):
    """The loop and the policy's part of the loss as in `LoopSettings`, and the critic.

    A critic takes the place of the group, so `preset`, `baseline` and `dynamic_sampling` cannot be changed.
    `normalize_advantage` whitens the advantages over the batch. `credit="per_turn"` places rewards of single calls at
    the ends of these calls; `gamma` discounts. `kl_in_reward` lowers each token's reward by
    kl_coef * log(p / p_reference), with the sampler's p (k1; Ziegler et al. 2019, equation 2).
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "tasks_per_step": 32,
        "samples_per_prompt": 1,
        "baseline": "none",
        "advantage_normalization": "batch",
        "loss_aggregation": "token",
        "epochs_per_batch": 2,
        "kl_in_reward": True,
    }
    """A rollout is compared with the critic's expectation, so one rollout of each task is enough."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per sampled token; 1 turns it off."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Lambda of generalized advantage estimation (Schulman et al. 2016): 1 trusts the rewards alone, 0 the critic."""
    minibatches: int = Field(default=2, ge=1)
    """Optimizer steps of each pass over a batch, which is divided by rollouts."""
    value_coef: float = Field(default=0.5, gt=0)
    """Weight of the value loss beside the policy's."""
    value_clip: float | None = Field(default=0.2, gt=0)
    """Clip range of the values in one update; in Python, None turns it off."""
    value_learning_rate: float = Field(default=1e-2, gt=0)
    """Learning rate of the value head."""
    value_warmup_steps: int = Field(default=1, ge=0)
    """First steps, in which the critic learns alone."""
    value_trains_adapter: bool = False
    """Let the value loss train the adapter as well."""

    @model_validator(mode="after")
    def _without_groups(self) -> Self:
        if self.preset != "grpo":
            raise ValueError(f"preset {self.preset} is a variant of GRPO: with PPO leave it out")
        if self.baseline != "none":
            raise ValueError(f"`baseline={self.baseline}` compares rollouts of a group: with PPO leave it out")
        if self.normalize_advantage and self.advantage_normalization != "batch":
            given = self.advantage_normalization
            raise ValueError(f"`advantage_normalization={given}` is GRPO's: PPO whitens over the batch")
        if find_loss(self.policy_loss).over_rollouts is not None:
            others = [name for name, loss in LOSSES.items() if loss.over_rollouts is None]
            raise ValueError(f"`policy_loss={self.policy_loss}` is GRPO's: with PPO take {' or '.join(others)}")
        if self.credit == "discounted":
            raise ValueError("`credit=discounted` is GRPO's: with PPO take `credit=per_turn` and `gamma`")
        return self
