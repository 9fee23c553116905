"""Names of settings elsewhere (TRL, transformers, verl, the guides of other packages), and their names here.

A name of elsewhere is refused, for it may mean something slightly different; the refusal says the name here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from ..errors import nearest

OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "batch_size": ("tasks_per_step", "per_device_train_batch_size"),
    "beta": ("kl_coef",),
    "cliprange": ("clip_ratio",),
    "epochs": ("total_epochs", "num_epochs", "num_train_epochs"),
    "epsilon": ("clip_ratio",),
    "epsilon_high": ("clip_ratio_high",),
    "eval_steps": ("eval_every", "eval_steps"),
    "eval_strategy": ("eval_every", "eval_steps"),
    "grad_clip": ("max_grad_norm",),
    "gradient_checkpointing": ("gradient_checkpointing", "checkpointing"),
    "group_size": ("samples_per_prompt",),
    "importance_sampling_level": ("policy_loss",),
    "init_kl_coef": ("kl_coef",),
    "kl_loss_coef": ("kl_coef",),
    "lam": ("gae_lambda",),
    "load_in_4bit": ("quantization",),
    "load_in_8bit": ("quantization",),
    "lora_r": ("lora_r", "r"),
    "lora_rank": ("lora_r", "r"),
    "loss_type": ("preset", "loss_aggregation"),
    "lr": ("learning_rate",),
    "lr_scheduler_type": ("lr_schedule", "schedule"),
    "max_completion_length": ("max_new_tokens",),
    "max_length": ("max_length", "max_new_tokens"),
    "max_response_length": ("max_new_tokens",),
    "max_seq_length": ("max_length",),
    "max_steps": ("max_steps", "total_steps"),
    "max_tokens": ("max_new_tokens",),
    "micro_batch_size": ("max_batch_tokens", "batch_size"),
    "model_name": ("model", "model_name"),
    "model_name_or_path": ("model", "model_name"),
    "model_path": ("model", "model_name"),
    "n_samples": ("samples_per_prompt", "samples"),
    "num_epochs": ("num_epochs", "total_epochs", "num_train_epochs"),
    "num_generations": ("samples_per_prompt",),
    "num_iterations": ("epochs_per_batch",),
    "num_ppo_epochs": ("epochs_per_batch",),
    "num_train_epochs": ("num_epochs", "total_epochs", "num_train_epochs"),
    "optim": ("optimizer",),
    "per_device_train_batch_size": ("tasks_per_step", "batch_size"),
    "ppo_epochs": ("epochs_per_batch",),
    "rank": ("lora_r", "r"),
    "report_to": ("loggers", "use_wandb"),
    "rollout_n": ("samples_per_prompt",),
    "save_steps": ("checkpoint_every", "save_steps"),
    "scale_rewards": ("normalize_advantage",),
    "steps": ("total_steps", "max_steps"),
    "total_training_steps": ("total_steps", "max_steps"),
    "train_batch_size": ("tasks_per_step", "batch_size"),
    "use_4bit": ("quantization",),
    "use_lora": ("use_lora", "full_finetune"),
    "use_peft": ("use_lora", "full_finetune"),
    "use_trl": ("backend",),
    "vf_coef": ("value_coef",),
    "warmup_ratio": ("warmup_steps",),
}
"""Name elsewhere → names here, of which a settings class has one or none."""

VALUES: Final[Mapping[str, str]] = {
    "load_in_4bit": "4bit",
    "load_in_8bit": "8bit",
    "use_4bit": "4bit",
    "use_trl": "trl",
}
"""Value of the setting here that a flag of elsewhere stands for."""


def called_here(name: str, known: Collection[str]) -> str | None:
    """Return what a setting of elsewhere is called here, among the `known` names; None where it is not known."""
    return next((here for here in OTHER_NAMES.get(name, ()) if here in known), None)


def misspelt(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a name may be a slip of. A name of elsewhere is no slip: None."""
    return None if name in OTHER_NAMES else nearest(name, known)


def refusal(name: str, known: Collection[str]) -> str | None:
    """Return the complaint about an unknown setting whose name here, or one spelled nearly alike, is among the `known`;
    None where there is none. Settings stand in it in backticks."""
    here = called_here(name, known)
    if here is not None:
        value = VALUES.get(name)
        return (
            f"{name} is unknown: here it is `{here}`" if value is None else f"{name} is unknown: give `{here}={value}`"
        )
    near = misspelt(name, known)
    return None if near is None else f"{name} is unknown: did you mean `{near}`?"
