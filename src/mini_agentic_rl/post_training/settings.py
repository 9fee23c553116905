"""The settings of post-training, merging and exporting: one class for each command.

Each field is an option of the command, and its docstring the help text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from ..algorithm import GRPOSettings
from ..config import JsonSettings, SeedSettings, restated
from ..policy import Dtype, LearnerSettings, LoraSettings, ModelSettings, Schedule
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
        "Model": (*ModelSettings.model_fields, "use_lora", "lora_r", "lora_alpha", "lora_dropout"),
        "Data": ("dataset", "max_samples", "eval_fraction", "max_length"),
        "Training": (
            *("num_epochs", "max_steps", "batch_size", "gradient_accumulation_steps", "learning_rate"),
            *("warmup_steps", "lr_schedule", "weight_decay", "gradient_checkpointing", "eval_every"),
            "early_stopping_patience",
        ),
        "Run": (
            *("output_dir", "seed", "checkpoint_every", "logging_steps", "console", "loggers", "resume"),
            *("overwrite", "json_output"),
        ),
    }

    use_lora: bool = True
    """Train a LoRA adapter on all linear layers; without it every weight is trained, in float32."""
    lora_r: int = restated(LoraSettings, "r", 16)
    lora_alpha: int = restated(LoraSettings, "alpha", 32)
    lora_dropout: float = restated(LoraSettings, "dropout", 0.0, "Dropout before the adapter.")

    dataset: str = "arithmetic"
    """Data set: `arithmetic` (generated), `medical` (for `sft`), `gsm_symbolic`, `gsm8k`, a JSON, JSONL, CSV or Parquet
    file, or a Hugging Face id."""
    max_samples: int | None = Field(default=None, ge=1)
    """Maximum number of examples, including held-out ones."""
    eval_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Share of the examples that is held out for evaluation; with 0 the loss is measured on training examples."""
    max_length: int = Field(default=1024, ge=8)
    """Maximum length of an example in tokens: longer conversations of `sft` are cut, other examples left out."""

    num_epochs: int = Field(default=3, ge=1)
    """Passes over the examples."""
    max_steps: int | None = Field(default=None, ge=1)
    """Number of optimizer steps, in place of `num_epochs`."""
    batch_size: int = Field(default=8, ge=1)
    """Examples in one forward-backward pass."""
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    """Forward-backward passes per optimizer step."""
    learning_rate: float = restated(LearnerSettings, "learning_rate", 2e-4)
    warmup_steps: int = restated(LearnerSettings, "warmup_steps", 0)
    lr_schedule: Schedule = restated(LearnerSettings, "schedule", "linear", "Learning-rate schedule.")
    weight_decay: float = restated(LearnerSettings, "weight_decay", 0.0)
    gradient_checkpointing: bool = restated(LearnerSettings, "checkpointing", False)
    eval_every: int | None = restated(
        GRPOSettings,
        "eval_every",
        None,
        "Steps between evaluations on the held-out examples; by default one after each epoch.",
        ge=1,
    )
    early_stopping_patience: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations without an improvement of the held-out loss, and keep the best weights."""

    checkpoint_every: int | None = restated(
        GRPOSettings, "checkpoint_every", None, "Steps between checkpoints; by default one after each epoch."
    )
    logging_steps: int = Field(default=10, ge=1)
    """Steps between rows of metrics."""

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


class ReferenceSettings(PostTrainingSettings):
    """The settings of the methods with a reference model."""

    beta: float = Field(default=0.1, gt=0)
    """Strength of the constraint to the reference, the model at the start of the run (beta of equation 7)."""


class DPOSettings(ReferenceSettings):
    """Direct preference optimization (Rafailov et al. 2023): raise chosen answers over rejected ones."""

    defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 5e-5, "output_dir": Path("outputs/dpo")}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {**PostTrainingSettings.panels, "Method": ("beta", "loss_type")}

    loss_type: Literal["sigmoid", "hinge", "ipo", "robust", "apo_zero"] = "sigmoid"
    """Loss; `sigmoid` is that of the DPO paper."""


class KTOSettings(ReferenceSettings):
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024): answers that are good or bad, each on its own."""

    defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 5e-5, "output_dir": Path("outputs/kto")}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        **PostTrainingSettings.panels,
        "Method": ("beta", "desirable_weight", "undesirable_weight"),
    }

    desirable_weight: float = Field(default=1.0, gt=0)
    """Weight of good answers; raise it if they are fewer."""
    undesirable_weight: float = Field(default=1.0, gt=0)
    """Weight of bad answers; raise it if they are fewer."""
    batch_size: int = restated(
        PostTrainingSettings,
        "batch_size",
        8,
        "Examples in one forward-backward pass, 2 or more, because they estimate the KL divergence together.",
        ge=2,
    )


class ORPOSettings(PostTrainingSettings):
    """Odds ratio preference optimization (Hong et al. 2024): imitation and preference at once, without a reference."""

    defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 1e-4, "output_dir": Path("outputs/orpo")}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {**PostTrainingSettings.panels, "Method": ("beta",)}

    beta: float = Field(default=0.1, gt=0)
    """Weight of the odds ratio relative to imitation (lambda of equation 6)."""


class RewardModelSettings(PostTrainingSettings):
    """A reward model (Bradley and Terry 1952): one number for an answer, higher for the one that is preferred."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "learning_rate": 5e-4,
        "num_epochs": 1,
        "output_dir": Path("outputs/reward-model"),
    }
    helps: ClassVar[Mapping[str, str]] = {
        **PostTrainingSettings.helps,
        "num_epochs": "Passes over the pairs; more than one easily overfits.",
    }
    panels: ClassVar[Mapping[str, Sequence[str]]] = {**PostTrainingSettings.panels, "Method": ("center_rewards",)}

    center_rewards: float = Field(default=0.01, ge=0)
    """Weight of the squared sum of a pair's rewards, which keeps rewards around 0; 0 turns it off."""


ExportFormat = Literal["merged", "adapter", "gguf"]


class ResultSettings(JsonSettings):
    """The common settings of `merge` and `export`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("model", "device"),
        "Result": ("output_dir", "dtype", "max_shard_size", "overwrite"),
        "Check": ("check", "check_tokens"),
        "Run": ("json_output",),
    }

    model: str | None = restated(
        ModelSettings, "model", None, "Base model; by default the one that the adapter says it was trained on."
    )
    device: str = restated(ModelSettings, "device", "auto")

    output_dir: Path | None = restated(
        RunSettings,
        "output_dir",
        None,
        "Folder of the result; by default beside the adapter, under its name with `-merged`, `-adapter` or `-gguf`.",
    )
    dtype: Dtype = restated(
        ModelSettings,
        "dtype",
        "auto",
        "Number format of the result; auto is that of the base, or of the adapter.",
    )
    max_shard_size: str = "5GB"
    """Maximum size of a file of weights."""
    overwrite: bool = restated(
        RunSettings, "overwrite", False, "Replace a model or an adapter that is in the output folder."
    )

    check: bool = True
    """Load the result, and compare its greedy tokens and logits with those of base and adapter; if they differ, nothing
    is written."""
    check_tokens: int = Field(default=24, ge=1)
    """Tokens to sample after each prompt of the check."""


class MergeSettings(ResultSettings):
    """The settings of `merge`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        **ResultSettings.panels,
        "Model": (*ResultSettings.panels["Model"], "adapter"),
    }

    adapter: Path | None = None
    """Folder of an adapter, or of the run that trained it. Required."""


class ExportSettings(ResultSettings):
    """The settings of `export`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        **ResultSettings.panels,
        "Model": (*ResultSettings.panels["Model"], "adapters"),
        "Result": (*ResultSettings.panels["Result"], "merge_lora", "format", "base_name"),
        "GGUF": ("converter", "outtype"),
    }

    adapters: Path | None = None
    """Folder of an adapter, or of the run that trained it. Without one, `format=gguf` converts the model itself."""
    merge_lora: Literal["true", "false"] | None = None
    """Merge adapters into their base: `true` is `format=merged`, `false` is `format=adapter`."""
    format: ExportFormat | None = None
    """`merged` (the default): a whole model for transformers and vLLM; `adapter`: plain peft format; `gguf`: one file
    for llama.cpp and programs based on it."""
    base_name: str | None = None
    """Name of the base in an exported adapter, such as a Hugging Face id; by default the id that it was loaded by, or
    the last part of a path."""

    converter: Path | None = None
    """llama.cpp's `convert_hf_to_gguf.py`, the folder of llama.cpp, or a similar program; by default the one on the
    PATH."""
    outtype: Literal["auto", "f32", "f16", "bf16", "q8_0"] = "auto"
    """Number format of the GGUF file; auto is the converter's choice."""

    @model_validator(mode="after")
    def _agree(self) -> ExportSettings:
        formats = {"true": ("merged", "gguf"), "false": ("adapter",)}
        if self.merge_lora is not None and self.format is not None and self.format not in formats[self.merge_lora]:
            raise ValueError(f"`merge_lora={self.merge_lora}` and `format={self.format}` contradict each other")
        return self

    @property
    def wanted(self) -> ExportFormat:
        """The format of `format` and `merge_lora` together."""
        return self.format or ("adapter" if self.merge_lora == "false" else "merged")
