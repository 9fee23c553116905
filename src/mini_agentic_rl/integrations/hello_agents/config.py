"""`TrainingConfig`: one configuration for supervised fine-tuning and for reinforcement learning.

Its fields have the names of transformers' training arguments and set those of this package's settings classes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, Field

from ...algorithm import GRPOSettings
from ...config import SeedSettings, Settings, restated
from ...errors import UserError, first_line
from ...metrics import LoggerName
from ...policy import Dtype, LearnerSettings, LoraSettings, ModelSettings
from ...post_training import PostTrainingSettings
from ...trainer import RunSettings


class TrainingConfig(Settings):
    """The configuration of a training. Fields can be assigned later; each value is validated."""

    model_config = ConfigDict(frozen=False, validate_assignment=True)

    model_name: str = restated(
        ModelSettings,
        "model",
        "embedded",
        "Model: `embedded`, a folder (of a model or of a trained adapter), or a Hugging Face id.",
    )
    model_revision: str | None = None
    """Revision of a model on the Hub: a branch, a tag or a commit; None takes the latest."""
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
    """Nucleus sampling probability (reinforcement learning). Below 1 the gradient is biased: the ratio still includes
    tokens that are excluded from sampling."""
    samples_per_prompt: int | None = restated(
        GRPOSettings,
        "samples_per_prompt",
        None,
        "Answers per task (reinforcement learning). None means 8, or 1 with PPO, which has a critic.",
    )
    use_fp16: bool = False
    """Compute in float16."""
    use_bf16: bool = False
    """Compute in bfloat16. Without either, the format is chosen by model and device."""
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
        "Dropout before the adapter while learning. Reinforcement learning has none unless it is set, so that the "
        "learned policy is the sampled one.",
    )
    lora_target_modules: list[str] | None = restated(
        LoraSettings, "target_modules", None, "Names of the layers with an adapter; None takes all linear layers."
    )
    use_wandb: bool = False
    """Send metrics to Weights & Biases."""
    wandb_project: str | None = None
    """Project of Weights & Biases."""
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
        """Loggers besides the console and `metrics.jsonl`."""
        names: list[LoggerName] = []
        if self.use_tensorboard:
            names.append("tensorboard")
        if self.use_wandb:
            names.append("wandb")
        return names


# Shared by training and evaluation: the model and metrics project of a `TrainingConfig`, and calls that need their own
# event loop, also in a notebook where one is running.


T = TypeVar("T")

_PROJECT_VARIABLE = "WANDB_PROJECT"


def model_source(config: TrainingConfig) -> str:
    """Return `model_name`, or with a `model_revision` the local folder of that revision, downloaded if missing.

    Raises:
        UserError: there is no such revision, or the Hub does not answer.
    """
    if config.model_revision is None:
        return config.model_name
    if config.model_name == "embedded" or Path(config.model_name).expanduser().exists():
        raise UserError(f"model_revision is for models of the Hub, not for {config.model_name!r}: leave it None")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return str(snapshot_download(config.model_name, revision=config.model_revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError) as error:
        raise UserError(
            f"model_name {config.model_name!r} in the revision {config.model_revision!r} cannot be loaded: "
            f"{first_line(error)}"
        ) from error


@contextmanager
def tracking_project(config: TrainingConfig) -> Iterator[None]:
    """Set the project of Weights & Biases to that of the configuration during the block."""
    before = os.environ.get(_PROJECT_VARIABLE)
    if config.use_wandb and config.wandb_project is not None:
        os.environ[_PROJECT_VARIABLE] = config.wandb_project
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_PROJECT_VARIABLE, None)
        else:
            os.environ[_PROJECT_VARIABLE] = before


def outside_of_loops(call: Callable[[], T]) -> T:
    """Call `call` and return its result; in another thread if an event loop is running in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(1, "training") as thread:
        return thread.submit(call).result()


# Installed packages and devices.


TRL_AVAILABLE: bool = find_spec("trl") is not None
"""True if TRL is installed: preferences and reward models need it, SFT and reinforcement learning do not."""

_INSTALL = "pip install 'mini-agentic-rl[trl]'"


def check_trl_installation() -> bool:
    """Return True if TRL can be used."""
    return find_spec("trl") is not None


def get_installation_guide() -> str:
    """Return a text on the packages that each training needs."""
    state = f"installed ({metadata.version('trl')})" if check_trl_installation() else "not installed"
    return (
        f"TRL: {state}\n"
        f"  DPO, KTO, ORPO and reward models need it:            {_INSTALL}\n"
        "  SFT, GRPO, PPO and the other reinforcement learning do not need it.\n"
        "  weights in 4 or 8 bits:                              pip install 'mini-agentic-rl[quant]'\n"
        "  Weights & Biases, TensorBoard, SwanLab and others:   pip install 'mini-agentic-rl[loggers]'"
    )


def get_device_info() -> dict[str, Any]:
    """Return the devices of torch: `device` (the default), `cuda_available`, `device_count`, `devices` (name and memory
    in GiB of each), `bf16`, `torch`, `threads`."""
    import torch

    from ...policy import resolve_device, resolve_dtype

    device = resolve_device("auto")
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "device": str(device),
        "cuda_available": torch.cuda.is_available(),
        "device_count": len(devices),
        "devices": [{"name": each.name, "memory_gib": round(each.total_memory / 2**30, 1)} for each in devices],
        "bf16": resolve_dtype("auto", device) is torch.bfloat16,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
