"""Training on written rows under a `TrainingConfig`: SFT, preferences, and reward models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import post_training
from ..errors import UserError
from ..post_training import (
    DPOSettings,
    KTOSettings,
    ORPOSettings,
    PostTrainingSettings,
    RewardModelSettings,
    SFTSettings,
)
from .config import TrainingConfig
from .models import model_source, tracking_project

SUPERVISED_SETTINGS: Mapping[str, type[PostTrainingSettings]] = {
    "sft": SFTSettings,
    "dpo": DPOSettings,
    "kto": KTOSettings,
    "orpo": ORPOSettings,
    "reward": RewardModelSettings,
}
"""The settings of each method by its name."""

FORMATS: Mapping[str, str] = {
    "sft": "sft",
    "dpo": "preference",
    "kto": "unpaired",
    "orpo": "preference",
    "reward": "preference",
}
"""The form of rows that each method learns from."""


def supervise(
    method: str,
    config: TrainingConfig,
    rows: Sequence[Mapping[str, Any]],
    folder: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train on rows in the form of the method and return the summary of the run. The result is `folder` itself.

    Args:
        method: a name in `SUPERVISED_SETTINGS`.
        resume: go on with the run in the folder.
        overwrite: replace the run in the folder.

    Raises:
        UserError: a setting cannot work, or the folder holds something else.
    """
    settings = settings_of(method, config, folder, resume=resume, overwrite=overwrite)
    train: Mapping[str, Callable[..., dict[str, Any]]] = {
        "sft": post_training.train_sft,
        "dpo": post_training.train_dpo,
        "kto": post_training.train_kto,
        "orpo": post_training.train_orpo,
        "reward": post_training.train_reward_model,
    }
    with tracking_project(config):
        return train[method](settings, train_rows=list(rows))


def settings_of(
    method: str, config: TrainingConfig, folder: str | Path, *, resume: bool = False, overwrite: bool = False
) -> PostTrainingSettings:
    """The settings of a method that say what `config` says.

    Raises:
        UserError: the method has no such setting.
    """
    if config.lora_target_modules is not None:
        raise UserError(
            "lora_target_modules: training on written rows puts the adapter on all linear layers; leave it None"
        )
    return SUPERVISED_SETTINGS[method](
        model=model_source(config),
        dtype=config.dtype,
        use_lora=config.use_lora,
        lora_r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        max_length=config.max_length,
        num_epochs=config.num_train_epochs,
        max_steps=config.max_steps,
        batch_size=config.per_device_train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup_steps,
        gradient_checkpointing=config.gradient_checkpointing,
        eval_every=config.eval_steps or None,
        checkpoint_every=config.save_steps,
        logging_steps=config.logging_steps,
        output_dir=Path(folder),
        seed=config.seed,
        loggers=config.loggers,
        resume=resume,
        overwrite=overwrite,
    )
