"""The settings of PPO. Reading them needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator
from typing_extensions import Self

from ..loop.settings import LoopSettings
from ..losses import LOSSES


class PPOSettings(LoopSettings):
    """The loop and the policy's part of the loss as in `GRPOSettings`; what follows is the critic's, and time's.

    A critic takes the place of the group: `preset`, `baseline` and `dynamic_sampling` stay as they are.
    `normalize_advantage` whitens the advantages over the batch. `credit="per_turn"` lets rewards of single calls count
    where they were given; what is discounted is `gamma`'s to say. `kl_in_reward` lowers each token's reward by
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
    """A rollout is compared with what the critic expected, so that one of each task is enough, and rewards of single
    tokens count."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per sampled token; by default 1, which discounts nothing."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """1 trusts the rewards alone, 0 the critic (generalized advantage estimation, Schulman et al. 2016)."""
    minibatches: int = Field(default=2, ge=1)
    """Optimizer steps that each pass over a batch is divided into, by rollouts."""
    value_coef: float = Field(default=0.5, gt=0)
    """Weight of the value loss beside the policy's."""
    value_clip: float | None = Field(default=0.2, gt=0)
    """Values move at most so far in one update; in Python, None lets them."""
    value_learning_rate: float = Field(default=1e-2, gt=0)
    """Learning rate of the value head."""
    value_warmup_steps: int = Field(default=1, ge=0)
    """Steps at the beginning in which the critic learns alone."""
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
        if LOSSES[self.policy_loss].over_rollouts is not None:
            others = [name for name, loss in LOSSES.items() if loss.over_rollouts is None]
            raise ValueError(f"`policy_loss={self.policy_loss}` is GRPO's: with PPO take {' or '.join(others)}")
        if self.replay_groups:
            raise ValueError("`replay_groups` is GRPO's: PPO's values are of the policy that sampled")
        if self.credit == "discounted":
            raise ValueError("`credit=discounted` is GRPO's: with PPO take `credit=per_turn` and `gamma`")
        return self
