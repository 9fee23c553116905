"""The settings of the other jobs behind the commands; what they share with `TrainConfig` are the same groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from ..algorithm import GRPOSettings, RolloutSettings
from ..config import JsonSettings, SeedSettings, Settings
from ..gateway import AnswerSettings, GrammarLimits, ServerSettings
from ..http import RequestLimits
from ..policy import AdaptedModelSettings, EngineSettings, LearnerSettings, LoraSettings, ModelSettings
from ..trainer import RunnerSettings
from .config import TaskSettings


class PlanSettings(JsonSettings):
    """The settings of `plan`."""

    defaults: ClassVar[Mapping[str, Any]] = {"loop.max_new_tokens": 512}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("load.*",),
        "Memory": (
            "vram",
            "lora.r",
            "lora.dropout",
            "learner.checkpointing",
            "learner.max_batch_tokens",
            "engine.cache_mib",
        ),
        "Reinforcement learning": (
            "loop.tasks_per_step",
            "loop.samples_per_prompt",
            "prompt_tokens",
            "loop.max_new_tokens",
        ),
        "Run": ("json_output",),
    }
    helps: ClassVar[Mapping[str, str]] = {
        "loop.max_new_tokens": "Tokens that a rollout samples in all its calls together.",
    }

    vram: str | None = None
    """Memory to fit into, as 4GB or 3500MB; settings that save memory are then chosen as needed. Without it the
    settings are planned as they are given. On a card bitsandbytes (the `quant` extra) is taken to be there."""
    prompt_tokens: int = Field(default=512, ge=1)
    """Tokens of a task's prompt, system prompt and tools included."""

    load: ModelSettings = ModelSettings()
    lora: LoraSettings = LoraSettings()
    learner: LearnerSettings = LearnerSettings()
    engine: EngineSettings = EngineSettings()
    loop: GRPOSettings = GRPOSettings()


class EvalSettings(RunnerSettings, JsonSettings):
    """The settings of `eval`, which never trains."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("load.*", "rollouts.tool_format", "rollouts.thinking"),
        "Tasks": ("tasks.*", "split", "size"),
        "Sampling": (
            "samples",
            "temperature",
            "rollouts.max_new_tokens",
            "n_runners",
            "rollouts.gateway_port",
            "rollouts.rollout_timeout",
        ),
        "Run": ("rollouts.seed", "output", "json_output"),
    }
    helps: ClassVar[Mapping[str, str]] = {
        "rollouts.rollout_timeout": "Seconds after which a rollout is ended and counts as wrong.",
        "rollouts.seed": "Seed of tasks and sampling.",
    }

    split: Literal["train", "val", "test"] = "test"
    """Which part of the tasks; of a single file, `test` is the whole."""
    size: int = Field(default=200, ge=1)
    """Number of problems at most."""
    samples: int = Field(default=1, ge=1)
    """Tries at each problem; with k tries pass@1 to pass@k are reported."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; by default 0 for one try and 1 for several."""
    output: Path | None = None
    """JSON file for the result, every rollout's answer included."""

    load: AdaptedModelSettings = AdaptedModelSettings()
    tasks: TaskSettings = TaskSettings()
    rollouts: RolloutSettings = RolloutSettings()


class ChatSettings(AdaptedModelSettings):
    """The settings of `chat`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": tuple(AdaptedModelSettings.model_fields),
        "Chat": ("temperature", "max_new_tokens", "max_turns", "tools"),
    }

    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature; 0 always takes the likeliest token."""
    max_new_tokens: int = Field(default=256, ge=1)
    """At most this many sampled tokens in one model call."""
    max_turns: int = Field(default=10, ge=1)
    """At most this many model calls for one message of yours."""
    tools: bool = True
    """Offer the math agent's tools to the model, under its system prompt."""


class ServeSettings(Settings):
    """The settings of `serve`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("load.*", "served_model_name", "answers.*"),
        "Limits of requests": ("limits.*", "grammars.*"),
        "Server": ("server.*", "engine.cache_mib", "engine.max_waiting"),
    }
    helps: ClassVar[Mapping[str, str]] = {
        "engine.cache_mib": "Size of the key/value cache in MiB; requests that do not fit into it wait.",
    }

    served_model_name: str | None = None
    """Name that clients ask for; by default the name of the model's folder, or its Hugging Face id. The model without
    its adapter is NAME-base."""

    load: AdaptedModelSettings = AdaptedModelSettings()
    answers: AnswerSettings = AnswerSettings()
    server: ServerSettings = ServerSettings()
    limits: RequestLimits = RequestLimits()
    grammars: GrammarLimits = GrammarLimits()
    engine: EngineSettings = EngineSettings()


class ConvertSettings(JsonSettings):
    """The settings of `convert-dpo`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Files": ("input", "output", "report"),
        "Fields": ("prompt_field", "chosen_field", "rejected_field"),
        "Options": ("json_output",),
    }

    input: Path | None = None
    """Raw preferences: .jsonl (also .gz), .json, .csv, .tsv or .parquet. Needed."""
    output: Path | None = None
    """JSONL file to write, one `{"prompt", "chosen", "rejected"}` of messages a line. Needed."""
    report: Path | None = None
    """JSON file for the report: what was left out, and why."""

    prompt_field: str | None = None
    """Field of the prompt, where it is not found by its name."""
    chosen_field: str | None = None
    """Field of the better answer, where it is not found by its name."""
    rejected_field: str | None = None
    """Field of the worse answer, where it is not found by its name."""


class DatasetSettings(SeedSettings, JsonSettings):
    """The settings of `dataset`."""

    helps: ClassVar[Mapping[str, str]] = {"seed": "Seed of the draw, and of what is generated."}

    dataset: str = Field(default="arithmetic", json_schema_extra={"argument": True})
    """Data set: `arithmetic`, `medical`, `gsm_symbolic`, `gsm8k`, a file, a folder, `owner/name` on the Hub, or
    `module:function`."""
    form: Literal["sft", "rl", "preference", "unpaired"] = "sft"
    """Form of training."""
    split: Literal["train", "val", "test", "all"] = "train"
    """Which part; `all` is for files."""
    max_samples: int | None = Field(default=None, ge=0)
    """Number of examples to draw; by default all, of generated data sets 1000."""
    show: int = Field(default=3, ge=0)
    """Number of examples to show."""
    output: Path | None = None
    """JSONL file for the examples, as training reads them."""
