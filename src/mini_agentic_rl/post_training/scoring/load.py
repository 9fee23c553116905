"""A reward model to serve, from what a person writes: the folder of a run, a checkpoint, or a hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForSequenceClassification,
    PretrainedConfig,
)
from transformers.modeling_layers import GenericForSequenceClassification

from ...gateway.served_policy import load_tokenizer
from ...policy import (
    Dtype,
    ModelNotFoundError,
    PolicyError,
    adapter_folder,
    resolve_device,
    resolve_dtype,
    resolve_model,
)
from ..models import only_errors
from ..scorer import load_reward_model
from .rendering import Reading
from .reward_model import RewardModel
from .settings import TextLimits

RUN_FILE = "run.json"
"""What a run of post-training leaves in its folder, and `merge` and `export` carry along."""


def load_scorer(
    model: str, *, device: str = "auto", dtype: Dtype = "auto", limits: TextLimits | None = None
) -> RewardModel:
    """The reward model, ready to score. An adapter is added into float32 weights, and stays beside others.

    Raises:
        PolicyError: it cannot be loaded, or is no reward model; the message names the setting to change.
    """
    if not model:
        raise PolicyError("--model is missing: give the folder of a reward model, e.g. what `reward` has trained")
    if adapter_folder(model) is None:
        path = resolve_model(model)
        config = _config(path, model)
        _check_is_scorer(config, model)
        if not _is_decoder(config):
            return _encoder(path, model, device, dtype, limits)
    found, tokenizer = load_reward_model(model, device, dtype)
    bare: Any = found
    if isinstance(found, PeftModel):
        bare = found.merge_and_unload() if bare.dtype == torch.float32 else found.get_base_model()
    return RewardModel(bare, tokenizer, model, limits, reading=_reading(model, tokenizer))


def _encoder(path: str, model: str, device: str, dtype: Dtype, limits: TextLimits | None) -> RewardModel:
    where = resolve_device(device)
    tokenizer = load_tokenizer(path)
    try:
        with only_errors():
            found = AutoModelForSequenceClassification.from_pretrained(path, dtype=resolve_dtype(dtype, where))
    except (OSError, ValueError) as error:
        raise _not_loaded(model, error) from error
    return RewardModel(found.to(where), tokenizer, model, limits, reading=_reading(model, tokenizer))


def _config(path: str, model: str) -> PretrainedConfig:
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise _not_loaded(model, error) from error


def _check_is_scorer(config: PretrainedConfig, model: str) -> None:
    architectures = config.architectures or []
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        raise PolicyError(
            f"--model {model!r} is {' or '.join(architectures) or 'a model without a head'}, not a reward model: "
            "train one with `mini-agentic-rl reward`"
        )
    if config.num_labels != 1:
        raise PolicyError(
            f"--model {model!r} tells {config.num_labels} labels apart, but a reward model has one: "
            "train one with `mini-agentic-rl reward`"
        )


def _is_decoder(config: PretrainedConfig) -> bool:
    found = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
    return found is not None and issubclass(found, GenericForSequenceClassification)


def _reading(model: str, tokenizer: Any) -> Reading:
    folder = Path(model).expanduser()
    run = folder.parent if folder.name.startswith("epoch_") else folder
    if (run / RUN_FILE).is_file():
        return "answer"
    return "template" if tokenizer.chat_template else "pair"


def _not_loaded(model: str, error: Exception) -> ModelNotFoundError:
    first = str(error).strip().splitlines()[0]
    return ModelNotFoundError(f"cannot load --model {model!r}: {first} (give a local folder or a Hugging Face id)")
