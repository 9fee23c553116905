"""The options of `train` that belong to PPO's critic, and to its view of time."""

from __future__ import annotations

from pydantic import Field
from pydantic.config import JsonDict

from ..config import Settings

_PPO: JsonDict = {"panel": "Critic (--algorithm ppo)"}


class CriticSettings(Settings):
    """None leaves a setting as `PPOSettings` has it; with another algorithm none of them may be given."""

    gamma: float | None = Field(default=None, gt=0, le=1, json_schema_extra=_PPO)
    """Discount per sampled token; by default 1, which discounts nothing."""
    gae_lambda: float | None = Field(default=None, ge=0, le=1, json_schema_extra=_PPO)
    """1 trusts the rewards alone, 0 the critic (generalized advantage estimation, Schulman et al. 2016)."""
    minibatches: int | None = Field(default=None, ge=1, json_schema_extra=_PPO)
    """Optimizer steps that each pass over a batch is divided into."""
    value_coef: float | None = Field(default=None, gt=0, json_schema_extra=_PPO)
    """Weight of the value loss beside the policy's."""
    value_clip: float | None = Field(default=None, gt=0, json_schema_extra=_PPO)
    """Values move at most so far in one update."""
    value_learning_rate: float | None = Field(default=None, gt=0, json_schema_extra=_PPO)
    """Learning rate of the value head."""
    value_warmup_steps: int | None = Field(default=None, ge=0, json_schema_extra=_PPO)
    """Steps at the beginning in which the critic learns alone."""
    value_trains_adapter: bool | None = Field(default=None, json_schema_extra=_PPO)
    """Let the value loss train the adapter as well."""

    def critic_options(self) -> dict[str, float]:
        """What was chosen against the defaults."""
        values = {name: getattr(self, name) for name in CriticSettings.model_fields}
        return {name: value for name, value in values.items() if value is not None}
