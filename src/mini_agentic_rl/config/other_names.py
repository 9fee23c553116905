"""Names of settings in other packages (TRL, transformers, verl, their guides), and their names here.

A foreign name is refused, since it may mean something slightly different; the message says the name here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from ..errors import nearest

OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "adapter": ("adapters",),
    "adapters": ("adapter",),
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
    "mongo_uri": ("url",),
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
"""Foreign name → names here, of which a settings class has at most one."""

VALUES: Final[Mapping[str, str]] = {
    "load_in_4bit": "4bit",
    "load_in_8bit": "8bit",
    "use_4bit": "4bit",
    "use_trl": "trl",
}
"""Foreign flag → value of the setting here."""


def called_here(name: str, known: Collection[str]) -> str | None:
    """Return the name among `known` of a setting with a foreign name; None for another name."""
    return next((here for here in OTHER_NAMES.get(name, ()) if here in known), None)


def misspelt(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a misspelt name was probably meant as; None for a foreign name."""
    return None if name in OTHER_NAMES else nearest(name, known)


def refusal(name: str, known: Collection[str]) -> str | None:
    """Return an error message for an unknown setting with the name to use, in backticks; None if no known name is
    near."""
    here = called_here(name, known)
    if here is None:
        near = misspelt(name, known)
        return None if near is None else f"{name} is unknown: did you mean `{near}`?"
    value = VALUES.get(name)
    return f"{name} is unknown: " + (f"here it is `{here}`" if value is None else f"give `{here}={value}`")
