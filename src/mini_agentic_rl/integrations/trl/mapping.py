"""Mini-GRPO's settings and rows as those of TRL, and the settings that TRL does not have."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...algorithm.groups import Trajectory
from ...algorithm.settings import GRPOSettings
from ...errors import MissingPackageError, UserError
from ...policy import LearnerSettings

_LOSS_TYPES = {"sequence": "grpo", "token": "dapo", "dr_grpo": "dr_grpo"}
"""TRL's name for each `loss_aggregation`."""


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
    """Return the settings that only the native backend supports, with their values."""
    is_beyond = {
        "baseline": settings.baseline != "group",
        "advantage_normalization": settings.normalize_advantage and settings.advantage_normalization != "group",
        "credit": settings.credit not in ("broadcast", "last_call"),
        "importance_correction": settings.importance_correction != "none",
        "kl_estimator": settings.kl_in_loss and settings.kl_estimator != "k3",
        "policy_loss": settings.policy_loss != "clip",
        "max_update_kl": settings.max_update_kl not in (0, GRPOSettings.model_fields["max_update_kl"].default),
    }
    usual = GRPOSettings.model_fields
    is_beyond |= {name: getattr(settings, name) != usual[name].default for name in _NATIVE}
    return {name: getattr(settings, name) for name, beyond in is_beyond.items() if beyond}


def trainer_options(settings: GRPOSettings, learner: LearnerSettings) -> dict[str, Any]:
    """Return the keywords of `trl.GRPOConfig` for the loss and the optimizer.

    A forward-backward pass takes one group, padded to its longest rollout; the gradients of a step's groups add up.
    """
    high = settings.clip_ratio if settings.clip_ratio_high is None else settings.clip_ratio_high
    return {
        "num_generations": settings.samples_per_prompt,
        "per_device_train_batch_size": settings.samples_per_prompt,
        "gradient_accumulation_steps": settings.tasks_per_step,
        "num_iterations": settings.epochs_per_batch,
        "max_steps": settings.epochs_per_batch,
        "max_completion_length": settings.max_trajectory_tokens,
        "temperature": settings.temperature,
        "loss_type": _LOSS_TYPES[settings.loss_aggregation],
        "epsilon": settings.clip_ratio,
        "epsilon_high": high,
        "beta": settings.kl_coef if settings.kl_in_loss else 0.0,
        "use_bias_correction_kl": False,  # differentiated as it is written
        "entropy_coef": settings.entropy_coef,
        "scale_rewards": "group" if settings.normalize_advantage else "none",
        "max_grad_norm": learner.max_grad_norm,
        "learning_rate": learner.learning_rate,
        "gradient_checkpointing": learner.checkpointing,
    }


# A rollout as a row of TRL: one prompt, one completion, and a mask of the sampled tokens.
#
#     prompt         of the first call
#     completion     its answer, the tool results or user messages (mask 0), the next answer, ... up to the last answer
#
# This works for rollouts whose calls continue each other token by token. A rewritten history or a second conversation
# would be several sequences, which TRL does not support.


@dataclass
class TRLRow:
    """One row of a batch of completions."""

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """[completion tokens] 1 for sampled tokens that are trained on."""
    logprobs: list[float] = field(default_factory=list)
    """[completion tokens] recorded log-probabilities; 0 where the mask is 0."""
    reward: float | None = None
    """None excludes the row from its group."""

    def add(self, ids: Sequence[int], mask: Sequence[int], logprobs: Sequence[float]) -> None:
        """Add tokens to the completion."""
        self.completion_ids.extend(ids)
        self.mask.extend(mask)
        self.logprobs.extend(logprobs)


def row_of(trajectory: Trajectory, temperature: float) -> TRLRow:
    """Return a trajectory as one row.

    Args:
        temperature: temperature of TRL's log-probabilities.
    """
    row = TRLRow(trajectory.records[0].prompt_ids.tolist(), reward=float(trajectory.values_C[0]))
    for number, (record, column) in enumerate(zip(trajectory.records, trajectory.column_R, strict=True)):
        if record.temperature != temperature:
            raise UserError(
                f"'trl' takes log-probabilities at the temperature {temperature:g}, but a call of rollout "
                f"{trajectory.rollout_id} was sampled at {record.temperature:g}: leave the temperature to the resource "
                "that the agent is given, or use `backend=native`",
                setting="backend",
            )
        prompt = record.prompt_ids.tolist()
        before = row.prompt_ids + row.completion_ids
        if prompt[: len(before)] != before:
            raise UserError(
                f"'trl' takes rollouts of one conversation, but call {number + 1} of rollout "
                f"{trajectory.rollout_id} does not continue the one before it: use `backend=native`, which trains any "
                "rollout, or (where a chat template rewrites the history) `thinking=keep`",
                setting="backend",
            )
        between = prompt[len(before) :]
        row.add(between, [0] * len(between), [0.0] * len(between))
        trained = np.ones(record.output_ids.size, np.bool_) if record.forced is None else ~record.forced
        trained = trained & (column >= 0)
        logprobs = np.where(trained, record.logprobs, 0.0)
        row.add(record.output_ids.tolist(), trained.astype(int).tolist(), logprobs.tolist())
    return row
