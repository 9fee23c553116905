"""The model of a run: loaded with what is to be trained, and saved so that `--model` finds it again.

A new run trains a LoRA adapter on all linear layers. Where the model is an adapter's folder itself, that adapter is
trained on, so that stages follow each other (SFT, then DPO, then RL) and each leaves one adapter on the same base.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from ..errors import UserError
from ..gateway.served_policy import load_tokenizer
from ..policy import (
    ModelNotFoundError,
    adapter_folder,
    quantization_config,
    resolve_device,
    resolve_dtype,
    resolve_model,
)
from .settings import PostTrainingSettings

logger = logging.getLogger(__name__)

ADAPTER = "default"


@dataclass(frozen=True)
class TrainedModel:
    """A model and how it is trained."""

    model: Any
    """The bare model, or a `PeftModel` whose adapter is trained on."""
    tokenizer: PreTrainedTokenizerBase
    new_adapter: LoraConfig | None
    """The adapter that the trainer has to make; None where one is there, or every weight is trained."""
    device: torch.device
    dtype: torch.dtype
    """What the device computes in."""


def load_causal(settings: PostTrainingSettings) -> TrainedModel:
    """A language model to train.

    Raises:
        UserError: the model cannot be loaded, or not in this way.
    """
    bare, device, dtype = load_bare(settings, AutoModelForCausalLM)
    tokenizer = load_tokenizer(settings.model)
    folder = adapter_folder(settings.model)
    if folder is None:
        lora = lora_config(settings, task_type="CAUSAL_LM") if settings.use_lora else None
        return TrainedModel(bare, tokenizer, lora, device, dtype)
    if task_of(folder) != "CAUSAL_LM":
        raise UserError(f"--model {settings.model} is a reward model, which writes no answers: give another model")
    return TrainedModel(PeftModel.from_pretrained(bare, folder, is_trainable=True), tokenizer, None, device, dtype)


def load_bare(
    settings: PostTrainingSettings, architecture: Any, **options: Any
) -> tuple[Any, torch.device, torch.dtype]:
    """The base weights under an `AutoModel…` class, with where and in what they compute.

    Raises:
        UserError: they cannot be loaded, or not in this way.
    """
    device = resolve_device(settings.device)
    if device.index:
        raise UserError(f"--device {settings.device}: choose the card with CUDA_VISIBLE_DEVICES, and --device cuda")
    dtype = resolve_dtype(settings.dtype, device)
    if not settings.use_lora and adapter_folder(settings.model) is not None:
        raise UserError(
            f"--no-use-lora trains whole weights, but --model {settings.model} is an adapter: "
            "merge it into its base first"
        )
    path = resolve_model(settings.model)
    if Path(path).is_dir():
        path = str(Path(path).resolve())  # what the adapter remembers has to hold in other working directories too
    if settings.quantization != "none":
        quantized = quantization_config(settings.quantization, dtype)
        if device.type != "cuda":
            raise UserError(f"--quantization {settings.quantization} needs a CUDA device: use --quantization none here")
        options |= {"quantization_config": quantized, "device_map": {"": 0}}
    transformers_logging.disable_progress_bar()
    kept = dtype if settings.use_lora else torch.float32
    try:
        with only_errors():  # a head that is new, or that is not used, is what was asked for
            model = architecture.from_pretrained(path, dtype=kept, **options)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelNotFoundError(
            f"cannot load --model {settings.model!r}: {first} (give 'embedded', a local folder or a Hugging Face id)"
        ) from error
    return model, device, dtype


def lora_config(settings: PostTrainingSettings, **options: Any) -> LoraConfig:
    """The adapter that the settings ask for: on every linear layer but the head."""
    return LoraConfig(
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules="all-linear",
        **options,
    )


def task_of(folder: Path) -> str | None:
    """What the adapter in `folder` was trained for: "CAUSAL_LM" or "SEQ_CLS", or None where it does not say."""
    task = LoraConfig.from_pretrained(str(folder)).task_type
    return None if task is None else str(getattr(task, "value", task))


def save_trained(model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write adapter or weights, and the tokenizer, into an empty folder."""
    if isinstance(model, PeftModel):
        model.save_pretrained(folder, selected_adapters=[ADAPTER])  # not the frozen copy that DPO compares with
        (folder / "README.md").unlink(missing_ok=True)
    else:
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def only_errors() -> Iterator[None]:
    """Within, transformers tells errors only."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
