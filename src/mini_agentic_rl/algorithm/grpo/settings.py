"""What a person can choose about Mini-GRPO."""

from __future__ import annotations

from pydantic import Field

from ...config import Settings
from ...gateway.thinking import ThinkingName
from ...gateway.tool_formats import ToolFormatName
from ..base import OnFailure
from .credit import CreditMode
from .loss import Aggregation, KLEstimator


class GRPOSettings(Settings):
    """The loop: how much is sampled, how it is turned into a loss, how often it is measured."""

    total_steps: int = Field(default=30, ge=0)
    """Reinforcement-learning steps."""
    total_epochs: int | None = Field(default=None, ge=0)
    """Passes over the training tasks, in place of `total_steps`; None takes `total_steps`."""
    tasks_per_step: int = Field(default=8, ge=1)
    """Tasks drawn in each step."""
    samples_per_prompt: int = Field(default=8, ge=2)
    """Rollouts of each task: the group whose rewards are compared with each other."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training rollouts."""
    max_new_tokens: int = Field(default=128, ge=1)
    """At most this many sampled tokens in one model call."""
    max_trajectory_tokens: int = Field(default=1024, ge=1)
    """The constant that `dr_grpo` divides by: about the most tokens a rollout samples."""
    clip_ratio: float = Field(default=0.2, gt=0, lt=1)
    """Lower bound of the clipped ratio is 1 minus this (PPO; Schulman et al. 2017, equation 7)."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Upper bound is 1 plus this; None takes `clip_ratio` (DAPO; Yu et al. 2025, section 3.1)."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty against the base model with the adapter off."""
    kl_estimator: KLEstimator = "k3"
    """Which estimator of the KL divergence is differentiated."""
    loss_aggregation: Aggregation = "sequence"
    """How token losses are averaged: per rollout first, over all tokens, or by a constant (Dr. GRPO)."""
    normalize_advantage: bool = True
    """Divide group advantages by the group's standard deviation."""
    credit: CreditMode = "broadcast"
    """Which reward each call of a rollout is trained with: the final one (`broadcast`), the final one for the last call
    alone (`last_call`), the final one plus what was emitted after the call (`per_turn`), or the discounted sum of what
    was emitted from the call on (`discounted`)."""
    credit_discount: float = Field(default=0.95, gt=0, le=1)
    """Discount per call of `credit="discounted"`; 1 discounts nothing."""
    mask_truncated: bool = False
    """Leave rollouts that ended at a length bound out of the loss; they still count in their group's mean."""
    epochs_per_batch: int = Field(default=1, ge=1)
    """Optimizer steps on each batch of rollouts."""
    rollout_timeout: float | None = Field(default=300.0, gt=0)
    """Seconds after which a rollout is ended and has failed."""
    on_failure: OnFailure = "drop"
    """What becomes of a rollout that fails: it is left out of its group (`drop`), counts as reward 0 if it has called
    the model (`zero`), or is tried again and left out when it fails for good (`retry`)."""
    max_attempts: int = Field(default=3, ge=1)
    """At most this many attempts at a rollout with `on_failure="retry"`."""
    tool_format: ToolFormatName = "auto"
    """How tool calls are written; auto takes what the chat template writes, Hermes where that cannot be read back."""
    thinking: ThinkingName = "auto"
    """What the model is shown of its earlier thoughts: `keep`, `drop`, `fork` (as the chat template does it), or `off`:
    think tags are ordinary text; auto is fork for models that know think tags."""
    eval_size: int | None = Field(default=200, ge=1)
    """How many validation tasks measure the accuracy; None takes all."""
    eval_every: int = Field(default=0, ge=0)
    """Measure every this many steps as well; 0 measures at the beginning and the end only."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Steps between checkpoints."""
    seed: int = Field(default=0, ge=0)
    """Seed of task order, sampling and initial adapter."""
    deterministic: bool = False
    """Sample each request alone, so that a run is repeated exactly (float32 on one CPU); slow."""

    def steps(self, tasks: int) -> int:
        """Steps of a whole run over a data set of so many tasks: the last one of an epoch may reach into the next."""
        return self.total_steps if self.total_epochs is None else self.total_epochs * -(-tasks // self.tasks_per_step)
