"""Mini-GRPO whose advantages, loss and optimizer steps are those of TRL's GRPOTrainer.

Loop, endpoint, rollouts and rewards are those of the native backend; TRL trains the same weights without a copy. This
file works without TRL: it checks a job, and `step_trainer.py` runs it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ...algorithm.settings import GRPOSettings
from ...errors import MissingPackageError, UserError

if TYPE_CHECKING:
    from .step_trainer import TRLObjective

_NATIVE = (
    "dynamic_sampling",
    "max_staleness",
    "separate_rewards",
    "reward_coef",
    "echo_coef",
    "sft_coef",
    "teacher",
)
"""Settings that TRL supports at their defaults only."""


def check_backend(settings: GRPOSettings, *, adapters: Collection[str], fixed_adapters: Collection[str]) -> None:
    """Check that TRL can run this job."""
    if importlib.util.find_spec("trl") is None:
        raise MissingPackageError("'trl'", "trl", extra="trl", setting="backend")
    is_beyond = {
        "baseline": settings.baseline != "group",
        "advantage_normalization": settings.normalize_advantage and settings.advantage_normalization != "group",
        "credit": settings.credit not in ("broadcast", "last_call"),
        "importance_correction": settings.importance_correction != "none",
        "kl_estimator": settings.kl_in_loss and settings.kl_estimator != "k3",
        "policy_loss": settings.policy_loss != "clip",
        "max_update_kl": settings.max_update_kl not in (0, GRPOSettings.model_fields["max_update_kl"].default),
    }
    is_beyond |= {name: getattr(settings, name) != GRPOSettings.model_fields[name].default for name in _NATIVE}
    beyond = [f"{name}={getattr(settings, name)!r}" for name, unsupported in is_beyond.items() if unsupported]
    if len(adapters) > 1:
        beyond.append("several adapters")
    if fixed_adapters:
        beyond.append("fixed_adapters")
    if beyond:
        raise UserError(
            f"'trl' does not do {', '.join(beyond)}: leave that out, or use `backend=native`", setting="backend"
        )


def make_objective(*arguments: Any) -> TRLObjective:
    """Return the `Objective` of a run, with the arguments of `TRLObjective`; imports TRL."""
    from .step_trainer import TRLObjective

    return TRLObjective(*arguments)
