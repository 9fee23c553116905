"""A method: its examples, its model, and the trainer of TRL that it learns by; `run` does what all methods share.

TRL is looked for in one place, reports to nobody, and draws no progress bars.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from huggingface_hub import constants
from transformers import TrainerCallback, set_seed

import datasets
from datasets import Dataset

from ..errors import MissingPackageError
from ..gateway import ChatRenderer
from ..logging import ignore_library_notices, only_errors_of
from .models import TrainedModel
from .rows import Example, TokenRows
from .settings import PostTrainingSettings

Rows: TypeAlias = Sequence[Example] | None
"""Examples given by hand; None where they are to be read."""
Callbacks: TypeAlias = Sequence[TrainerCallback]

S = TypeVar("S", bound=PostTrainingSettings)


@dataclass(frozen=True)
class TrlTrainer:
    """The trainer of TRL that a method learns by, with the options that are the method's own."""

    trainer: Any
    """Its class."""
    configuration: Any
    """The class of its configuration."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the settings of the method add; they win over those that all methods share."""

    def make(self, loaded: TrainedModel, arguments: Mapping[str, Any], train: Dataset, measured: Dataset) -> Any:
        """Return the trainer of a model, under the `arguments` that all methods share."""
        # TRL 1.14 draws a new adapter before it sets the seed
        set_seed(arguments["seed"])
        return self.trainer(
            model=loaded.model,
            args=self.configuration(**{**arguments, **self.options}),
            train_dataset=train,
            eval_dataset=measured,
            processing_class=loaded.tokenizer,
            peft_config=loaded.new_adapter,
        )


@dataclass(frozen=True)
class Method(Generic[S]):
    """One method of post-training: what it does in its own way."""

    name: str
    form: str
    """The format of its examples; see `load_examples`."""
    tokenise: Callable[[ChatRenderer, Sequence[Example], S], TokenRows]
    """Turns examples into the rows that its trainer reads."""
    load: Callable[[S], TrainedModel]
    """Loads the model with its head."""
    trainer: Callable[[S], TrlTrainer]
    """Returns its trainer; TRL is imported here."""
    result: Callable[[Any, int], dict[str, Any]] = lambda trainer, measured: {}
    """Returns what else belongs into the summary: of the trainer after its last evaluation, on so many rows."""


def on_token_ids(trainer: Any) -> Any:
    """Return the trainer's class with its data preparation off: the rows are token ids already, and TRL would render
    text."""

    class OnTokenIds(trainer):  # type: ignore[misc]  # TRL has no types here
        def _prepare_dataset(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
            return dataset

    return OnTokenIds


def training_arguments(
    settings: PostTrainingSettings, checkpoints: Path, loaded: TrainedModel, *, evaluates: bool
) -> dict[str, Any]:
    """Return what all of TRL's configurations share.

    Mixed precision is on only where it has something to do: frozen weights are in the device's type already.
    """
    half = str(loaded.dtype).removeprefix("torch.")
    mixed = loaded.device.type == "cuda" or not settings.use_lora
    measuring = "no" if not evaluates else "epoch" if settings.eval_every is None else "steps"
    stops_early = settings.early_stopping_patience is not None
    every = settings.eval_every if stops_early else settings.checkpoint_every
    return {
        "output_dir": str(checkpoints),
        "num_train_epochs": settings.num_epochs,
        "max_steps": -1 if settings.max_steps is None else settings.max_steps,
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": settings.batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": settings.lr_schedule,
        "warmup_steps": settings.warmup_steps,
        "weight_decay": settings.weight_decay,
        "bf16": mixed and half == "bfloat16",
        "fp16": mixed and half == "float16",
        "use_cpu": loaded.device.type == "cpu",
        "dataloader_pin_memory": loaded.device.type == "cuda",
        "eval_strategy": measuring,
        "eval_steps": settings.eval_every,
        "save_strategy": "epoch" if every is None else "steps",
        "save_steps": every or 1,
        "load_best_model_at_end": stops_early,
        "metric_for_best_model": "eval_loss" if stops_early else None,
        "logging_steps": settings.logging_steps,
        "logging_first_step": True,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": settings.seed,
    }


def require_trl() -> None:
    """Check that TRL is there.

    Raises:
        MissingPackageError: it is not installed.
    """
    if importlib.util.find_spec("trl") is None:
        raise MissingPackageError("training on written rows", "trl", extra="trl")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep libraries quiet for the duration of a block: TRL sends no usage report to the Hub, data sets show no
    progress bars, and no library tells what it will rename, or which special tokens it has brought into line."""
    reported, shown = constants.HF_HUB_DISABLE_TELEMETRY, not datasets.are_progress_bars_disabled()
    constants.HF_HUB_DISABLE_TELEMETRY = True
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings(), only_errors_of("transformers"):
            ignore_library_notices()
            yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = reported
        if shown:
            datasets.enable_progress_bars()
