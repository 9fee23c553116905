"""`TrainingConfig`: one configuration for supervised fine-tuning and for reinforcement learning.

It uses the names of transformers' training arguments, and hands them to the settings classes of this package.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from ...algorithm import GRPOSettings
from ...config import SeedSettings, Settings, restated
from ...metrics import LoggerName
from ...policy import Dtype, LearnerSettings, LoraSettings, ModelSettings
from ...post_training import PostTrainingSettings
from ...trainer import RunSettings


class TrainingConfig(Settings):
    """The configuration of a training. Fields may be set after it was made; each value is checked then."""

    model_config = ConfigDict(frozen=False, validate_assignment=True)

    model_name: str = restated(
        ModelSettings,
        "model",
        "embedded",
        "Model: `embedded`, a folder (of a model or of a trained adapter), or a Hugging Face id.",
    )
    model_revision: str | None = None
    """Revision of a model from the Hub: a branch, a tag or a commit; None takes the newest."""
    output_dir: str = restated(RunSettings, "output_dir", "./output", "Folder for everything that the training writes.")
    num_train_epochs: int = restated(PostTrainingSettings, "num_epochs", 3)
    max_steps: int | None = restated(PostTrainingSettings, "max_steps", None)
    per_device_train_batch_size: int = restated(
        PostTrainingSettings,
        "batch_size",
        4,
        "Examples of a forward-backward pass; in reinforcement learning, tasks.",
    )
    gradient_accumulation_steps: int = restated(
        PostTrainingSettings,
        "gradient_accumulation_steps",
        4,
        "Passes per optimizer step: a step learns from this times `per_device_train_batch_size` examples or tasks.",
    )
    learning_rate: float = restated(LearnerSettings, "learning_rate", 5e-5)
    warmup_steps: int = restated(LearnerSettings, "warmup_steps", 0)
    logging_steps: int = restated(PostTrainingSettings, "logging_steps", 10)
    save_steps: int | None = restated(
        PostTrainingSettings,
        "checkpoint_every",
        None,
        "Steps between two checkpoints; None writes one after each epoch, in reinforcement learning every 5 steps.",
    )
    eval_steps: int = restated(
        GRPOSettings,
        "eval_every",
        0,
        "Steps between two measurements on held-out rows; 0 measures at the beginning and the end only.",
    )
    max_new_tokens: int = restated(
        GRPOSettings,
        "max_new_tokens",
        512,
        "At most this many sampled tokens in an answer (reinforcement learning).",
    )
    temperature: float = restated(GRPOSettings, "temperature", 1.0, "Sampling temperature (reinforcement learning).")
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the likeliest tokens that have this much probability together (reinforcement learning). Below 1 the
    gradient is biased: what is cut off from sampling still counts in the ratio."""
    samples_per_prompt: int | None = restated(
        GRPOSettings,
        "samples_per_prompt",
        None,
        "Answers to each task (reinforcement learning). None is 8, whose rewards are compared with each other; with "
        "PPO, which compares with a critic, 1.",
    )
    use_fp16: bool = False
    """Compute in float16."""
    use_bf16: bool = False
    """Compute in bfloat16. Without either, in what model and device are best at."""
    gradient_checkpointing: bool = restated(PostTrainingSettings, "gradient_checkpointing", False)
    use_lora: bool = restated(
        PostTrainingSettings, "use_lora", True, "Train a low-rank adapter; otherwise every weight."
    )
    lora_r: int = restated(LoraSettings, "r", 16)
    lora_alpha: int = restated(LoraSettings, "alpha", 32)
    lora_dropout: float = restated(
        LoraSettings,
        "dropout",
        0.05,
        "Dropout before the adapter while learning. Where it is not set, reinforcement learning has none, so that the "
        "policy that learns is the one that has sampled.",
    )
    lora_target_modules: list[str] | None = restated(
        LoraSettings, "target_modules", None, "Which layers get an adapter; None takes all linear ones."
    )
    use_wandb: bool = False
    """Send metrics to Weights & Biases."""
    wandb_project: str | None = None
    """The project there."""
    use_tensorboard: bool = False
    """Write metrics for TensorBoard into the output folder."""
    seed: int = restated(SeedSettings, "seed", 42, "Seed of the order of the data, of sampling, and of new weights.")
    max_length: int = restated(
        PostTrainingSettings, "max_length", 2048, "Longer examples are cut off (supervised training).", ge=1
    )

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return self.model_dump()

    @property
    def dtype(self) -> Dtype:
        """The number format of the weights."""
        if self.use_bf16:
            return "bfloat16"
        return "float16" if self.use_fp16 else "auto"

    @property
    def loggers(self) -> list[LoggerName]:
        """The loggers that metrics go to besides the console and `metrics.jsonl`."""
        found: list[LoggerName] = []
        if self.use_tensorboard:
            found.append("tensorboard")
        if self.use_wandb:
            found.append("wandb")
        return found
