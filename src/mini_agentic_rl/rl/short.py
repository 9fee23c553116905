"""Training in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .config import TrainingConfig
from .datasets import create_rl_dataset, create_sft_dataset
from .prompt_agent import RewardFunction
from .trainers import GRPOTrainerWrapper, SFTTrainerWrapper

Rows = Sequence[Mapping[str, Any]]


def train_with_sft(
    model_name: str = "embedded",
    dataset: Rows | None = None,
    output_dir: str = "./output/sft",
    *,
    max_samples: int | None = 1000,
    **settings: Any,
) -> dict[str, Any]:
    """Fine-tune a model, save it in `output_dir`, and return the summary.

    Args:
        model_name: as in `TrainingConfig`.
        dataset: rows with `messages`; None takes `create_sft_dataset(max_samples)`.
        output_dir: where the result goes.
        max_samples: rows of the data set that is taken without a `dataset`.
        settings: further fields of `TrainingConfig`.

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
        UserError: the training cannot be done as asked.
    """
    config = TrainingConfig(model_name=model_name, output_dir=output_dir, **settings)
    trainer = SFTTrainerWrapper(config, create_sft_dataset(max_samples) if dataset is None else dataset)
    summary = trainer.train()
    trainer.save_model()
    return summary


def train_with_grpo(
    model_name: str = "embedded",
    dataset: Rows | None = None,
    reward_fn: RewardFunction | None = None,
    output_dir: str = "./output/grpo",
    *,
    max_samples: int | None = 500,
    **settings: Any,
) -> dict[str, Any]:
    """Reinforce a model, save it in `output_dir`, and return the summary.

    Args:
        model_name: as in `TrainingConfig`.
        dataset: rows with a `prompt`; None takes `create_rl_dataset(max_samples)`.
        reward_fn: see `GRPOTrainerWrapper`.
        output_dir: where the result goes.
        max_samples: rows of the data set that is taken without a `dataset`.
        settings: further fields of `TrainingConfig`.

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
        UserError: the training cannot be done as asked.
    """
    config = TrainingConfig(model_name=model_name, output_dir=output_dir, **settings)
    trainer = GRPOTrainerWrapper(config, create_rl_dataset(max_samples) if dataset is None else dataset, reward_fn)
    summary = trainer.train()
    trainer.save_model()
    return summary
