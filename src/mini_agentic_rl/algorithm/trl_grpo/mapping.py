"""Mini-GRPO's settings in TRL's words, and which of them TRL has no word for."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from typing import Any

from ...errors import UserError
from ...policy import LearnerSettings
from ..grpo.settings import GRPOSettings

_LOSS_TYPES = {"sequence": "grpo", "token": "dapo", "dr_grpo": "dr_grpo"}


def check_backend(settings: GRPOSettings, *, adapters: Collection[str], fixed_adapters: Collection[str]) -> None:
    """Whether TRL can run this job.

    Raises:
        UserError: it is not installed, or a setting has no counterpart; the message names all of these.
    """
    if importlib.util.find_spec("trl") is None:
        raise UserError("backend='trl' needs TRL: pip install 'mini-agentic-rl[trl]'")
    beyond = [f"{name}={value!r}" for name, value in _beyond(settings).items()]
    if len(adapters) > 1:
        beyond.append("several adapters")
    if fixed_adapters:
        beyond.append("fixed_adapters")
    if beyond:
        raise UserError(f"backend='trl' does not do {', '.join(beyond)}: leave that out, or use backend='native'")


def _beyond(settings: GRPOSettings) -> dict[str, Any]:
    """Settings that only the native backend follows, with their values."""
    found: dict[str, Any] = {}
    if settings.baseline != "group":
        found["baseline"] = settings.baseline
    if settings.over_batch:
        found["advantage_normalization"] = settings.advantage_normalization
    if settings.credit not in ("broadcast", "last_call"):
        found["credit"] = settings.credit
    if settings.importance_correction != "none":
        found["importance_correction"] = settings.importance_correction
    if settings.kl_in_loss and settings.kl_estimator != "k3":
        found["kl_estimator"] = settings.kl_estimator
    if settings.policy_loss == "gspo" and settings.loss_aggregation != "sequence":
        found["loss_aggregation"] = settings.loss_aggregation
    if settings.policy_loss == "cispo" and (settings.loss_aggregation != "token" or settings.clip_ratio < 1):
        found |= {"loss_aggregation": settings.loss_aggregation, "clip_ratio": settings.clip_ratio}
    if settings.dynamic_sampling:
        found["dynamic_sampling"] = True
    return found


def trainer_options(settings: GRPOSettings, learner: LearnerSettings) -> dict[str, Any]:
    """The keywords of `trl.GRPOConfig` that say what is learnt. A forward-backward pass takes one group, padded to its
    longest rollout; the gradients of a step's groups add up."""
    high = settings.clip_ratio if settings.clip_ratio_high is None else settings.clip_ratio_high
    cispo = settings.policy_loss == "cispo"
    return {
        "num_generations": settings.samples_per_prompt,
        "per_device_train_batch_size": settings.samples_per_prompt,
        "gradient_accumulation_steps": settings.tasks_per_step,
        "num_iterations": settings.epochs_per_batch,
        "max_steps": settings.epochs_per_batch,
        "max_completion_length": settings.max_trajectory_tokens,
        "temperature": settings.temperature,
        "loss_type": "cispo" if cispo else _LOSS_TYPES[settings.loss_aggregation],
        "importance_sampling_level": "sequence" if settings.policy_loss == "gspo" else "token",
        "epsilon": settings.clip_ratio,
        "epsilon_high": 1 + high if cispo else high,  # there the bound of the ratio itself
        "beta": settings.kl_coef if settings.kl_in_loss else 0.0,
        "use_bias_correction_kl": False,  # differentiated as it is written
        "entropy_coef": settings.entropy_coef,
        "scale_rewards": "group" if settings.normalize_advantage else "none",
        "max_grad_norm": learner.max_grad_norm,
        "learning_rate": learner.learning_rate,
        "gradient_checkpointing": learner.checkpointing,
    }
