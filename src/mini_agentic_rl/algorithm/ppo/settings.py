"""What a person can choose about PPO."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from ..loop.settings import Baseline, LoopSettings, Normalization
from ..losses import LOSSES, Aggregation, PolicyLossName


class PPOSettings(LoopSettings):
    """The loop and the policy's part of the loss as in `GRPOSettings`; what follows is the critic's, and time's.

    A critic takes the place of the group: `preset`, `baseline` and `dynamic_sampling` stay as they are.
    `normalize_advantage` whitens the advantages over the batch. `credit="per_turn"` lets rewards of single calls count
    where they were given; what is discounted is `gamma`'s to say.
    """

    preset: Literal["grpo"] = "grpo"
    """None of the variants of GRPO is one of PPO."""
    tasks_per_step: int = Field(default=32, ge=1)
    """Tasks drawn in each step."""
    samples_per_prompt: int = Field(default=1, ge=1)
    """Rollouts of each task; they are not compared with each other, but share the computation of their prompt."""
    baseline: Baseline = "none"
    """Rewards are compared with what the critic expected."""
    advantage_normalization: Normalization = "batch"
    """Over the batch alone."""
    policy_loss: PolicyLossName = "clip"
    """`clip` or `cispo`; the ratio of whole rollouts (`gspo`) has no place beside advantages of single tokens."""
    loss_aggregation: Aggregation = "token"
    """How token losses, and the critic's errors, are averaged: over all tokens, per rollout first, or by a constant."""
    epochs_per_batch: int = Field(default=2, ge=1)
    """Passes over each batch of rollouts."""
    minibatches: int = Field(default=2, ge=1)
    """Optimizer steps that each pass over a batch is divided into, by rollouts."""
    kl_in_reward: bool = True
    """Lower each token's reward by kl_coef * log(p / p_reference), with the sampler's p (k1; Ziegler et al. 2019,
    equation 2), instead of adding `kl_estimator` to the loss."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per sampled token; 1 discounts nothing."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Lambda of generalized advantage estimation: 1 trusts the rewards alone, 0 the critic (Schulman et al. 2016)."""
    value_coef: float = Field(default=0.5, gt=0)
    """Weight of the value loss beside the policy's."""
    value_clip: float | None = Field(default=0.2, gt=0)
    """Values move at most so far from those before the update; None lets them."""
    value_learning_rate: float = Field(default=1e-2, gt=0)
    """Learning rate of the value head, which has its own optimizer."""
    value_warmup_steps: int = Field(default=1, ge=0)
    """Steps at the beginning in which the critic learns alone, and the policy stays as it is."""
    value_trains_adapter: bool = False
    """Let the value loss train the adapter as well, and not the value head alone."""

    @model_validator(mode="after")
    def _without_groups(self) -> Self:
        if self.baseline != "none":
            raise ValueError(f"baseline {self.baseline} compares rollouts of a group: with PPO leave it out")
        if self.normalize_advantage and self.advantage_normalization != "batch":
            raise ValueError("advantage_normalization group is GRPO's: PPO whitens over the batch")
        if LOSSES[self.policy_loss].over_rollouts is not None:
            others = [name for name, loss in LOSSES.items() if loss.over_rollouts is None]
            raise ValueError(f"policy_loss {self.policy_loss} is GRPO's: with PPO take {' or '.join(others)}")
        if self.credit == "discounted":
            raise ValueError("credit discounted is GRPO's: with PPO take credit per_turn and gamma")
        return self
