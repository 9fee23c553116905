"""The settings that algorithms share. Reading them needs no torch."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from ..config import SeedSettings, Settings
from ..gateway import AnswerSettings
from ..policy import Schedule

OnFailure: TypeAlias = Literal["drop", "zero", "retry"]
"""Treatment of a rollout that failed: left out, counted as reward 0, or run again."""


class RolloutSettings(AnswerSettings, SeedSettings):
    """Sampling of rollouts."""

    max_new_tokens: int = Field(default=128, ge=1)
    """At most this many sampled tokens in one model call."""
    rollout_timeout: float | None = Field(default=300.0, gt=0)
    """Seconds after which a rollout is ended and has failed."""
    gateway_port: int = Field(default=0, ge=0, le=65535)
    """Port of the endpoint that agents call; 0 takes a free one. A fixed one suits agents whose `base_url` is fixed."""
    gateway_host: str | None = None
    """Address that this endpoint listens on; 0.0.0.0 lets agents on other machines in. It then asks for a key that is
    made for the run, and that agents find with its address. By default this machine's loopback, or with runners on Ray
    its address in the cluster."""
    gateway_url: str | None = None
    """URL by which agents reach it, as http://learner:8000, where that is not its address; by default, for 0.0.0.0, the
    name of this machine and the port."""


class WarmStartSettings(Settings):
    """Amount of imitation before reinforcement learning."""

    examples: int = Field(default=64, ge=0, json_schema_extra={"option": "--sft-examples"})
    """Number of generated example conversations to imitate before reinforcement learning, at most; 0 leaves it out."""
    until: Literal["ready", "examples"] = Field(default="ready", json_schema_extra={"option": "--sft-until"})
    """End the warm-up when the policy is ready for rewards (`ready`: 15 to 50 % of single tries at some tasks succeed,
    and at least 25 points more of eight), or after all examples (`examples`)."""
    batch_size: int = Field(default=4, ge=1, json_schema_extra={"option": "--sft-batch-size"})
    """Conversations per optimizer step of the imitation."""
    learning_rate: float = Field(default=1e-3, gt=0, json_schema_extra={"option": "--sft-learning-rate"})
    """Peak learning rate of the imitation."""
    warmup_steps: int = Field(default=2, ge=0)
    """Steps over which the learning rate rises."""
    schedule: Schedule = Field(default="constant", json_schema_extra={"option": "--sft-lr-schedule"})
    """Curve by which the learning rate of the imitation falls over its steps."""
