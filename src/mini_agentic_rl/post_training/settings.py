"""The settings of post-training: one class for each method, on those that all of them share.

As for the other commands each field is an option, and its docstring the help text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from ..config import Settings
from ..metrics import LoggerName

_MODEL: JsonDict = {"panel": "Model"}
_DATA: JsonDict = {"panel": "Data"}
_TRAINING: JsonDict = {"panel": "Training"}
_METHOD: JsonDict = {"panel": "Method"}
_RUN: JsonDict = {"panel": "Run"}
_JSON: JsonDict = {"panel": "Run", "option": "--json"}


LearningRate = Annotated[
    float,
    Field(
        gt=0,
        description="Peak learning rate; full training wants about a tenth of what LoRA wants.",
        json_schema_extra=_TRAINING,
    ),
]
Beta = Annotated[
    float,
    Field(
        gt=0,
        description="How strongly the model is held to where it started: the beta of equation 7.",
        json_schema_extra=_METHOD,
    ),
]
RunPath = Annotated[
    Path,
    Field(
        description="Folder of the run: the trained adapter (or model), `epoch_N/` folders, checkpoints, metrics and "
        "summary.",
        json_schema_extra=_RUN,
    ),
]


class PostTrainingSettings(Settings):
    """The settings that every method takes."""

    model: str = Field(default="embedded", json_schema_extra=_MODEL)
    """Model to start from: `embedded` (SmolLM2-135M-Instruct), a Hugging Face id, a local folder, or the folder of an
    adapter, which is trained on."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(default="auto", json_schema_extra=_MODEL)
    """Number format of the weights that stay as they are; auto takes what the device is best at."""
    device: str = Field(default="auto", json_schema_extra=_MODEL)
    """Where to compute: auto, cpu, cuda, mps."""
    quantization: Literal["none", "4bit", "8bit"] = Field(default="none", json_schema_extra=_MODEL)
    """Load the base weights in 4 or 8 bits on a CUDA device (needs bitsandbytes: the `quant` extra)."""
    use_lora: bool = Field(default=True, json_schema_extra=_MODEL)
    """Train a LoRA adapter on all linear layers; without it every weight is trained, in float32."""
    lora_r: int = Field(default=16, ge=1, json_schema_extra=_MODEL)
    """Rank of the LoRA adapter."""
    lora_alpha: int = Field(default=32, ge=1, json_schema_extra=_MODEL)
    """Scale of the LoRA adapter: its output is multiplied by alpha / rank."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1, json_schema_extra=_MODEL)
    """Dropout before the adapter."""

    dataset: str = Field(default="arithmetic", json_schema_extra=_DATA)
    """Examples: `arithmetic` (generated), `medical` (for `sft`), `gsm_symbolic`, `gsm8k`, a JSON, JSONL, CSV or Parquet
    file, or a Hugging Face id."""
    max_samples: int | None = Field(default=None, ge=1, json_schema_extra=_DATA)
    """At most this many examples, held-out ones included."""
    eval_fraction: float = Field(default=0.1, ge=0, lt=1, json_schema_extra=_DATA)
    """Part of the examples that is held out to measure on; with 0 the loss is measured on training examples."""
    max_length: int = Field(default=1024, ge=8, json_schema_extra=_DATA)
    """At most this many tokens of an example: longer conversations of `sft` are cut, other examples left out."""

    num_epochs: int = Field(default=3, ge=1, json_schema_extra=_TRAINING)
    """Passes over the examples."""
    max_steps: int | None = Field(default=None, ge=1, json_schema_extra=_TRAINING)
    """Optimizer steps, in place of the number of epochs."""
    batch_size: int = Field(default=8, ge=1, json_schema_extra=_TRAINING)
    """Examples in one forward-backward pass."""
    gradient_accumulation_steps: int = Field(default=1, ge=1, json_schema_extra=_TRAINING)
    """Passes that make up one optimizer step."""
    learning_rate: LearningRate = 2e-4
    warmup_steps: int = Field(default=0, ge=0, json_schema_extra=_TRAINING)
    """Steps over which the learning rate rises."""
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(default="linear", json_schema_extra=_TRAINING)
    """How the learning rate falls over the steps."""
    weight_decay: float = Field(default=0.0, ge=0, json_schema_extra=_TRAINING)
    """Weight decay of AdamW."""
    gradient_checkpointing: bool = Field(default=False, json_schema_extra=_TRAINING)
    """Recompute activations in the backward pass: less memory, about a third more time."""
    eval_every: int | None = Field(default=None, ge=1, json_schema_extra=_TRAINING)
    """Measure on the held-out examples every this many steps; by default after each epoch."""
    early_stopping_patience: int | None = Field(default=None, ge=1, json_schema_extra=_TRAINING)
    """Stop when the held-out loss has not improved for this many measurements, and keep the best weights."""

    output_dir: RunPath = Path("outputs/post-training")
    seed: int = Field(default=0, ge=0, json_schema_extra=_RUN)
    """Seed of examples, their order and initial weights."""
    checkpoint_every: int | None = Field(default=None, ge=1, json_schema_extra=_RUN)
    """Steps between checkpoints; by default one after each epoch."""
    logging_steps: int = Field(default=10, ge=1, json_schema_extra=_RUN)
    """Steps between two rows of metrics."""
    loggers: list[LoggerName] = Field(default=["console", "jsonl"], json_schema_extra=_RUN)
    """Where metrics go; give it several times for several loggers."""
    resume: bool = Field(default=False, json_schema_extra=_RUN)
    """Continue the run in the output folder from its last checkpoint."""
    overwrite: bool = Field(default=False, json_schema_extra=_RUN)
    """Replace the run in the output folder."""
    json_output: bool = Field(default=False, json_schema_extra=_JSON)
    """Print the summary as JSON on standard output."""

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

    packing: bool = Field(default=False, json_schema_extra=_METHOD)
    """Put several conversations into one row of `max_length` tokens, none of which sees another."""
    output_dir: RunPath = Path("outputs/sft")


class DPOSettings(PostTrainingSettings):
    """Direct preference optimization (Rafailov et al. 2023): raise chosen answers over rejected ones."""

    beta: Beta = 0.1
    loss_type: Literal["sigmoid", "hinge", "ipo", "robust", "apo_zero"] = Field(
        default="sigmoid", json_schema_extra=_METHOD
    )
    """The loss: `sigmoid` is DPO's own."""
    learning_rate: LearningRate = 5e-5
    output_dir: RunPath = Path("outputs/dpo")


class KTOSettings(PostTrainingSettings):
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024): answers that are good or bad, each on its own."""

    beta: Beta = 0.1
    desirable_weight: float = Field(default=1.0, gt=0, json_schema_extra=_METHOD)
    """Weight of good answers; raise it where they are fewer."""
    undesirable_weight: float = Field(default=1.0, gt=0, json_schema_extra=_METHOD)
    """Weight of bad answers; raise it where they are fewer."""
    batch_size: int = Field(default=8, ge=2, json_schema_extra=_TRAINING)
    """Examples in one forward-backward pass, 2 or more: they estimate the KL divergence together."""
    learning_rate: LearningRate = 5e-5
    output_dir: RunPath = Path("outputs/kto")


class ORPOSettings(PostTrainingSettings):
    """Odds ratio preference optimization (Hong et al. 2024): imitation and preference at once, without a reference."""

    beta: float = Field(default=0.1, gt=0, json_schema_extra=_METHOD)
    """Weight of the odds ratio beside the imitation: the lambda of equation 6."""
    learning_rate: LearningRate = 1e-4
    output_dir: RunPath = Path("outputs/orpo")


class RewardModelSettings(PostTrainingSettings):
    """A reward model (Bradley and Terry 1952): one number for an answer, higher for the one that is preferred."""

    center_rewards: float = Field(default=0.01, ge=0, json_schema_extra=_METHOD)
    """Weight of the square of the pair's summed rewards, which keeps rewards around 0; 0 leaves it out."""
    learning_rate: LearningRate = 5e-4
    num_epochs: int = Field(default=1, ge=1, json_schema_extra=_TRAINING)
    """Passes over the pairs; more than one soon learns them by heart."""
    output_dir: RunPath = Path("outputs/reward-model")
