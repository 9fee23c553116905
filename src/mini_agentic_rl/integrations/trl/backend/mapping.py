"""Mini-GRPO's settings in TRL's words, and which of them TRL has no word for."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....algorithm.settings import GRPOSettings
from ....errors import MissingPackageError, UserError
from ....policy import LearnerSettings

_LOSS_TYPES = {"sequence": "grpo", "token": "dapo", "dr_grpo": "dr_grpo"}
"""TRL's name for each `loss_aggregation`."""


@dataclass(frozen=True)
class _TRLLoss:
    """One of our losses, as TRL is asked for it."""

    loss_type: str | None = None
    """None leaves it to the aggregation."""
    level: str = "token"
    """Clips the ratio of each `token` or of each `sequence`."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Values of settings with which alone TRL computes it."""
    bounds_ratio: bool = False
    """True if `epsilon_high` is the bound of the ratio itself, and not its distance from 1."""


_NATIVE = (
    "dynamic_sampling",
    "replay_groups",
    "max_staleness",
    "separate_rewards",
    "reward_coef",
    "echo_coef",
    "sft_coef",
    "teacher",
)
"""Settings that TRL knows at their defaults only."""

_LOSSES = {
    "clip": _TRLLoss(),
    "gspo": _TRLLoss(level="sequence", only={"loss_aggregation": "sequence"}),
    "cispo": _TRLLoss("cispo", only={"loss_aggregation": "token", "clip_ratio": 1.0}, bounds_ratio=True),
}
"""Every `policy_loss` that TRL has."""


def check_backend(settings: GRPOSettings, *, adapters: Collection[str], fixed_adapters: Collection[str]) -> None:
    """Check that TRL can run this job.

    Raises:
        UserError: it is not installed, or a setting has no counterpart; the message names all of these.
    """
    if importlib.util.find_spec("trl") is None:
        raise MissingPackageError("'trl'", "trl", extra="trl", setting="backend")
    beyond = [f"{name}={value!r}" for name, value in _beyond(settings).items()]
    if len(adapters) > 1:
        beyond.append("several adapters")
    if fixed_adapters:
        beyond.append("fixed_adapters")
    if beyond:
        raise UserError(
            f"'trl' does not do {', '.join(beyond)}: leave that out, or use `backend=native`", setting="backend"
        )


def _beyond(settings: GRPOSettings) -> dict[str, Any]:
    """Return the settings that only the native backend follows, with their values."""
    loss = _LOSSES.get(settings.policy_loss)
    is_beyond = {
        "baseline": settings.baseline != "group",
        "advantage_normalization": settings.normalize_advantage and settings.advantage_normalization != "group",
        "credit": settings.credit not in ("broadcast", "last_call"),
        "importance_correction": settings.importance_correction != "none",
        "kl_estimator": settings.kl_in_loss and settings.kl_estimator != "k3",
        "policy_loss": loss is None,
        "max_update_kl": settings.max_update_kl not in (0, GRPOSettings.model_fields["max_update_kl"].default),
    }
    if loss is not None and any(getattr(settings, name) != value for name, value in loss.only.items()):
        is_beyond |= dict.fromkeys(loss.only, True)
    usual = GRPOSettings.model_fields
    is_beyond |= {name: getattr(settings, name) != usual[name].default for name in _NATIVE}
    return {name: getattr(settings, name) for name, beyond in is_beyond.items() if beyond}


def trainer_options(settings: GRPOSettings, learner: LearnerSettings) -> dict[str, Any]:
    """Return the keywords of `trl.GRPOConfig` that say what is learnt.

    A forward-backward pass takes one group, padded to its longest rollout; the gradients of a step's groups add up.
    """
    high = settings.clip_ratio if settings.clip_ratio_high is None else settings.clip_ratio_high
    loss = _LOSSES[settings.policy_loss]
    return {
        "num_generations": settings.samples_per_prompt,
        "per_device_train_batch_size": settings.samples_per_prompt,
        "gradient_accumulation_steps": settings.tasks_per_step,
        "num_iterations": settings.epochs_per_batch,
        "max_steps": settings.epochs_per_batch,
        "max_completion_length": settings.max_trajectory_tokens,
        "temperature": settings.temperature,
        "loss_type": loss.loss_type or _LOSS_TYPES[settings.loss_aggregation],
        "importance_sampling_level": loss.level,
        "epsilon": settings.clip_ratio,
        "epsilon_high": 1 + high if loss.bounds_ratio else high,
        "beta": settings.kl_coef if settings.kl_in_loss else 0.0,
        "use_bias_correction_kl": False,  # differentiated as it is written
        "entropy_coef": settings.entropy_coef,
        "scale_rewards": "group" if settings.normalize_advantage else "none",
        "max_grad_norm": learner.max_grad_norm,
        "learning_rate": learner.learning_rate,
        "gradient_checkpointing": learner.checkpointing,
    }
