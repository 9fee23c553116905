"""Training on written rows under a `TrainingConfig`: SFT, preferences, and reward models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import post_training
from ...errors import UserError
from ...post_training import (
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

_SAME = sorted(
    {*TrainingConfig.model_fields, "dtype", "loggers"} & PostTrainingSettings.model_fields.keys() - {"output_dir"}
)
"""Settings that `TrainingConfig` and every method call by the same name."""


def supervise(
    method: str,
    config: TrainingConfig,
    rows: Sequence[Mapping[str, Any]],
    folder: str | Path,
    *,
    options: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train on rows in the form of the method and return the summary of the run. The result is `folder` itself.

    Args:
        method: a name in `SUPERVISED_SETTINGS`.
        options: settings of the method that `config` does not have, as `beta`.
        resume: go on with the run in the folder.
        overwrite: replace the run in the folder.

    Raises:
        pydantic.ValidationError: an option is out of its range, or the method has none of that name.
        UserError: a setting cannot work, or the folder holds something else.
    """
    settings = settings_of(method, config, folder, options=options, resume=resume, overwrite=overwrite)
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
    method: str,
    config: TrainingConfig,
    folder: str | Path,
    *,
    options: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> PostTrainingSettings:
    """Return the settings of a method that say what `config` and `options` say.

    Raises:
        pydantic.ValidationError: an option is out of its range, or the method has none of that name.
        UserError: the method has no such setting.
    """
    if config.lora_target_modules is not None:
        raise UserError(
            "lora_target_modules: training on written rows puts the adapter on all linear layers; leave it None"
        )
    values: dict[str, Any] = {
        **{name: getattr(config, name) for name in _SAME},
        "model": model_source(config),
        "num_epochs": config.num_train_epochs,
        "batch_size": config.per_device_train_batch_size,
        "eval_every": config.eval_steps or None,
        "checkpoint_every": config.save_steps,
        "output_dir": Path(folder),
        "resume": resume,
        "overwrite": overwrite,
    }
    return SUPERVISED_SETTINGS[method](**values, **_checked(options or {}, values))


def _checked(options: Mapping[str, Any], taken: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options.

    Raises:
        UserError: the configuration has one of them, under this name or another.
    """
    twice = sorted(options.keys() & taken.keys())
    if twice:
        raise UserError(f"{twice[0]} is a setting of TrainingConfig: give it there", setting=twice[0])
    return options
