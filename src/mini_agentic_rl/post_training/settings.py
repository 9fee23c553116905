"""The settings of post-training: one class for each method, on those that all of them share.

As for the other commands each field is an option, and its docstring the help text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from ..algorithm import GRPOSettings
from ..config import JsonSettings, SeedSettings, restated
from ..policy import LearnerSettings, LoraSettings, ModelSettings, Schedule
from ..trainer import RunSettings


class PostTrainingSettings(JsonSettings, RunSettings, SeedSettings, ModelSettings):
    """The settings that every method takes."""

    defaults: ClassVar[Mapping[str, Any]] = {"output_dir": Path("outputs/post-training")}
    helps: ClassVar[Mapping[str, str]] = {
        "model": "Model to start from: `embedded` (SmolLM2-135M-Instruct), a Hugging Face id, a local folder, or the "
        "folder of an adapter, which is trained on.",
        "device": "Device that computes: auto, cpu, cuda, mps.",
        "output_dir": "Folder of the run: the trained adapter (or model), `epoch_N/` folders, checkpoints, metrics and "
        "summary.",
        "seed": "Seed of examples, their order and initial weights.",
    }
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": (
            *ModelSettings.model_fields,
            "use_lora",
            "lora_r",
            "lora_alpha",
            "lora_dropout",
        ),
        "Data": ("dataset", "max_samples", "eval_fraction", "max_length"),
        "Training": (
            "num_epochs",
            "max_steps",
            "batch_size",
            "gradient_accumulation_steps",
            "learning_rate",
            "warmup_steps",
            "lr_schedule",
            "weight_decay",
            "gradient_checkpointing",
            "eval_every",
            "early_stopping_patience",
        ),
        "Run": (
            "output_dir",
            "seed",
            "checkpoint_every",
            "logging_steps",
            "console",
            "loggers",
            "resume",
            "overwrite",
            "json_output",
        ),
    }

    use_lora: bool = True
    """Train a LoRA adapter on all linear layers; without it every weight is trained, in float32."""
    lora_r: int = restated(LoraSettings, "r", 16)
    lora_alpha: int = restated(LoraSettings, "alpha", 32)
    lora_dropout: float = restated(LoraSettings, "dropout", 0.0, "Dropout before the adapter.")

    dataset: str = "arithmetic"
    """Examples: `arithmetic` (generated), `medical` (for `sft`), `gsm_symbolic`, `gsm8k`, a JSON, JSONL, CSV or Parquet
    file, or a Hugging Face id."""
    max_samples: int | None = Field(default=None, ge=1)
    """At most this many examples, held-out ones included."""
    eval_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Part of the examples that is held out to measure on; with 0 the loss is measured on training examples."""
    max_length: int = Field(default=1024, ge=8)
    """At most this many tokens of an example: longer conversations of `sft` are cut, other examples left out."""

    num_epochs: int = Field(default=3, ge=1)
    """Passes over the examples."""
    max_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps, in place of the number of epochs."""
    batch_size: int = Field(default=8, ge=1)
    """Examples in one forward-backward pass."""
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    """Passes that make up one optimizer step."""
    learning_rate: float = restated(LearnerSettings, "learning_rate", 2e-4)
    warmup_steps: int = restated(LearnerSettings, "warmup_steps", 0)
    lr_schedule: Schedule = restated(LearnerSettings, "schedule", "linear")
    weight_decay: float = restated(LearnerSettings, "weight_decay", 0.0)
    gradient_checkpointing: bool = restated(LearnerSettings, "checkpointing", False)
    eval_every: int | None = restated(
        GRPOSettings,
        "eval_every",
        None,
        "Measure on the held-out examples every this many steps; by default after each epoch.",
        ge=1,
    )
    early_stopping_patience: int | None = Field(default=None, ge=1)
    """Stop when the held-out loss has not improved for this many measurements, and keep the best weights."""

    checkpoint_every: int | None = restated(
        GRPOSettings, "checkpoint_every", None, "Steps between checkpoints; by default one after each epoch."
    )
    logging_steps: int = Field(default=10, ge=1)
    """Steps between two rows of metrics."""

    @model_validator(mode="after")
    def _fit_together(self) -> PostTrainingSettings:
        if not self.use_lora and self.quantization != "none":
            raise ValueError(
                "quantised weights are trained by LoRA only: set `quantization=none`, or leave `use_lora` on"
            )
        if self.early_stopping_patience is not None:
            if self.eval_fraction == 0:
                raise ValueError("`early_stopping_patience` needs held-out examples: raise `eval_fraction` above 0")
            if self.checkpoint_every not in (None, self.eval_every):
                raise ValueError(
                    "`early_stopping_patience` needs a checkpoint at each measurement: "
                    "give `checkpoint_every` and `eval_every` the same number"
                )
        return self


class SFTSettings(PostTrainingSettings):
    """Supervised fine-tuning: imitate the assistant's turns of written conversations."""

    defaults: ClassVar[Mapping[str, Any]] = {"output_dir": Path("outputs/sft")}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {**PostTrainingSettings.panels, "Method": ("packing",)}

    packing: bool = False
    """Put several conversations into one row of `max_length` tokens, none of which sees another."""


class ReferenceSettings(PostTrainingSettings):
    """The settings of the methods that hold the model to where it started."""

    beta: float = Field(default=0.1, gt=0)
    """Strength with which the model is held to where it started: the beta of equation 7."""


class DPOSettings(ReferenceSettings):
    """Direct preference optimization (Rafailov et al. 2023): raise chosen answers over rejected ones."""

    defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 5e-5, "output_dir": Path("outputs/dpo")}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {**PostTrainingSettings.panels, "Method": ("beta", "loss_type")}

    loss_type: Literal["sigmoid", "hinge", "ipo", "robust", "apo_zero"] = "sigmoid"
    """The loss: `sigmoid` is DPO's own."""


class KTOSettings(ReferenceSettings):
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024): answers that are good or bad, each on its own."""

    defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 5e-5, "output_dir": Path("outputs/kto")}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        **PostTrainingSettings.panels,
        "Method": ("beta", "desirable_weight", "undesirable_weight"),
    }

    desirable_weight: float = Field(default=1.0, gt=0)
    """Weight of good answers; raise it where they are fewer."""
    undesirable_weight: float = Field(default=1.0, gt=0)
    """Weight of bad answers; raise it where they are fewer."""
    batch_size: int = restated(
        PostTrainingSettings,
        "batch_size",
        8,
        "Examples in one forward-backward pass, 2 or more: they estimate the KL divergence together.",
        ge=2,
    )


class ORPOSettings(PostTrainingSettings):
    """Odds ratio preference optimization (Hong et al. 2024): imitation and preference at once, without a reference."""

    defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 1e-4, "output_dir": Path("outputs/orpo")}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {**PostTrainingSettings.panels, "Method": ("beta",)}

    beta: float = Field(default=0.1, gt=0)
    """Weight of the odds ratio beside the imitation: the lambda of equation 6."""


class RewardModelSettings(PostTrainingSettings):
    """A reward model (Bradley and Terry 1952): one number for an answer, higher for the one that is preferred."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "learning_rate": 5e-4,
        "num_epochs": 1,
        "output_dir": Path("outputs/reward-model"),
    }
    helps: ClassVar[Mapping[str, str]] = {
        **PostTrainingSettings.helps,
        "num_epochs": "Passes over the pairs; more than one soon learns them by heart.",
    }
    panels: ClassVar[Mapping[str, Sequence[str]]] = {**PostTrainingSettings.panels, "Method": ("center_rewards",)}

    center_rewards: float = Field(default=0.01, ge=0)
    """Weight of the square of the pair's summed rewards, which keeps rewards around 0; 0 leaves it out."""
