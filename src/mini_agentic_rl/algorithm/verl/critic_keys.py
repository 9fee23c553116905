"""The keys that mean something with a critic alone: `algorithm.adv_estimator=gae`, which is PPO.

verl's critic is a model of its own; here it is a value head on the policy's weights, which learns in the policy's steps
and has a learning rate of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from .convert import number, whole
from .keys import Fixed, Setting, never

ESTIMATORS: Sequence[str] = ("gae", "AdvantageEstimator.GAE")
"""Values of `algorithm.adv_estimator` that have a critic."""

CRITIC_SETTINGS: Sequence[Setting] = (
    Setting("algorithm.gamma", "grpo.gamma", number),
    Setting("algorithm.lam", "grpo.gae_lambda", number),
    Setting("critic.cliprange_value", "grpo.value_clip", number),
    Setting("trainer.critic_warmup", "grpo.value_warmup_steps", whole),
)

_HEAD = "the critic is a value head on the policy's weights"
_STEPS = "the critic learns in the policy's steps"

CRITIC_IGNORED: Sequence[Fixed] = (
    Fixed("critic.optim", never, f"{_HEAD}: its learning rate is the setting value_learning_rate"),
    Fixed("critic.model.path", never, _HEAD),
    Fixed("critic.model.lora_rank", never, _HEAD),
    Fixed("critic.ppo_epochs", never, _STEPS),
    Fixed("critic.ppo_mini_batch_size", never, _STEPS),
    Fixed("critic.grad_clip", lambda value: str(value) in ("1", "1.0"), "gradients of the head are clipped at 1"),
    Fixed("critic.loss_agg_mode", never, "errors of the critic are averaged as the loss of the policy"),
)
