"""`TrainingConfig`: one configuration for supervised fine-tuning and for reinforcement learning.

It uses the names of transformers' training arguments, and hands them to the settings classes of this package.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from ..config import Settings
from ..metrics import LoggerName

DType = Literal["auto", "float32", "bfloat16", "float16"]


class TrainingConfig(Settings):
    """How a model is trained. Fields may be set after it was made; each value is checked then."""

    model_config = ConfigDict(frozen=False, validate_assignment=True)

    model_name: str = "embedded"
    """Model: `embedded`, a folder (of a model or of a trained adapter), or a Hugging Face id."""
    model_revision: str | None = None
    """Revision of a model from the Hub: a branch, a tag or a commit; None takes the newest."""
    output_dir: str = "./output"
    """Folder for everything that the training writes."""
    num_train_epochs: int = Field(default=3, ge=1)
    """Passes over the data set."""
    max_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps, in place of the passes."""
    per_device_train_batch_size: int = Field(default=4, ge=1)
    """Examples of a forward-backward pass; in reinforcement learning, tasks."""
    gradient_accumulation_steps: int = Field(default=4, ge=1)
    """Passes per optimizer step: a step learns from this times `per_device_train_batch_size` examples or tasks."""
    learning_rate: float = Field(default=5e-5, gt=0)
    """Peak learning rate. LoRA takes about ten times what full fine-tuning does."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises."""
    logging_steps: int = Field(default=10, ge=1)
    """Steps between two rows of figures."""
    save_steps: int | None = Field(default=None, ge=1)
    """Steps between two checkpoints; None writes one after each epoch, in reinforcement learning every 5 steps."""
    eval_steps: int = Field(default=0, ge=0)
    """Steps between two measurements on held-out rows; 0 measures at the beginning and the end only."""
    max_new_tokens: int = Field(default=512, ge=1)
    """At most this many sampled tokens in an answer (reinforcement learning)."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature (reinforcement learning)."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the likeliest tokens that have this much probability together (reinforcement learning). Below 1 the
    gradient is biased: what is cut off from sampling still counts in the ratio."""
    samples_per_prompt: int | None = Field(default=None, ge=1)
    """Answers to each task (reinforcement learning). None is 8, whose rewards are compared with each other; with PPO,
    which compares with a critic, 1."""
    use_fp16: bool = False
    """Compute in float16."""
    use_bf16: bool = False
    """Compute in bfloat16. Without either, in what model and device are best at."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    use_lora: bool = True
    """Train a low-rank adapter; otherwise every weight."""
    lora_r: int = Field(default=16, ge=1)
    """Rank of the adapter."""
    lora_alpha: int = Field(default=32, ge=1)
    """Scale of the adapter, divided by its rank."""
    lora_dropout: float = Field(default=0.05, ge=0, lt=1)
    """Dropout before the adapter in supervised training. Reinforcement learning has none: the model that learns would
    no longer be the one that has sampled."""
    lora_target_modules: list[str] | None = None
    """Which layers get an adapter; None takes all linear ones."""
    use_wandb: bool = False
    """Send figures to Weights & Biases."""
    wandb_project: str | None = None
    """The project there."""
    use_tensorboard: bool = False
    """Write figures for TensorBoard into the output folder."""
    seed: int = Field(default=42, ge=0)
    """Seed of the order of the data, of sampling, and of new weights."""
    max_length: int = Field(default=2048, ge=1)
    """Longer examples are cut off (supervised training)."""

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return self.model_dump()

    @property
    def dtype(self) -> DType:
        """The number format of the weights."""
        if self.use_bf16:
            return "bfloat16"
        return "float16" if self.use_fp16 else "auto"

    @property
    def loggers(self) -> list[LoggerName]:
        """Where figures go."""
        found: list[LoggerName] = ["console", "jsonl"]
        if self.use_tensorboard:
            found.append("tensorboard")
        if self.use_wandb:
            found.append("wandb")
        return found
