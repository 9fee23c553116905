"""The settings of the other jobs behind the commands; what they share with `TrainConfig` are the same groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from ..algorithm import GRPOSettings, RolloutSettings
from ..config import HarnessSettings, JsonSettings, SeedSettings, Settings
from ..gateway import AnswerSettings, GrammarLimits, ServerSettings, SessionSettings
from ..http import RequestLimits
from ..policy import (
    AdaptedModelSettings,
    EngineSettings,
    LearnerSettings,
    LoraSettings,
    ModelSettings,
    RankSettings,
)
from ..samplers import SamplerSettings
from ..trainer import RunnerSettings, TraceExportSettings
from .agents import TaskSettings


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
            "engine.cuda_graphs",
            "engine.sampler_device",
        ),
        "Reinforcement learning": (
            "loop.tasks_per_step",
            "loop.samples_per_prompt",
            "prompt_tokens",
            "loop.max_new_tokens",
            "loop.max_staleness",
        ),
        "Spread": ("ranks", "team.shard", "sampling.sampler", "replicas", "rates"),
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
    ranks: int = Field(default=1, ge=1)
    """Processes that learn, each with a share of the step's tasks."""
    replicas: int = Field(default=0, ge=0)
    """Servers that sample for the ranks. With 0 there is one where `sampler` is not `own` or the base is in parts, else
    each rank samples its share itself."""
    rates: Path | None = None
    """Folder of a run whose measured rates predict the seconds of a step; by default the rates of a 2-core machine, and
    none for a card."""

    load: ModelSettings = ModelSettings()
    lora: LoraSettings = LoraSettings()
    learner: LearnerSettings = LearnerSettings()
    engine: EngineSettings = EngineSettings()
    sampling: SamplerSettings = SamplerSettings()
    team: RankSettings = RankSettings()
    loop: GRPOSettings = GRPOSettings()


class ParitySettings(JsonSettings):
    """The settings of `parity`."""

    defaults: ClassVar[Mapping[str, Any]] = {"sampling.sampler": "vllm"}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("load.*",),
        "Servers that sample": ("sampling.*",),
        "Run": ("json_output",),
    }

    load: AdaptedModelSettings = AdaptedModelSettings()
    sampling: SamplerSettings = SamplerSettings()


class EvalSettings(RunnerSettings, JsonSettings):
    """The settings of `eval`, which never trains."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("load.*", "rollouts.tool_format", "rollouts.thinking"),
        "Tasks": ("tasks.*", "split", "size"),
        "Agent that is a command": ("harness.*",),
        "Sampling": (
            "samples",
            "temperature",
            "rollouts.max_new_tokens",
            "n_runners",
            "rollouts.gateway_port",
            "rollouts.gateway_host",
            "rollouts.gateway_url",
            "rollouts.rollout_timeout",
        ),
        "Run": ("rollouts.seed", "output", "export.*", "json_output"),
    }
    helps: ClassVar[Mapping[str, str]] = {
        "rollouts.rollout_timeout": "Seconds after which a rollout is ended and counts as wrong.",
        "rollouts.seed": "Seed of tasks and sampling.",
    }

    split: Literal["train", "val", "test", "transfer"] = "test"
    """Part of the tasks; of a single file, `test` is the whole. `transfer` has what is never trained on: stories
    and operations of arithmetic, wordings and the like of a family of tasks."""
    size: int = Field(default=200, ge=1)
    """Number of problems at most."""
    samples: int = Field(default=1, ge=1)
    """Tries at each problem; with k tries pass@1 to pass@k are reported, and the accuracy of the majority's answer."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; by default 0 for one try and 1 for several."""
    output: Path | None = None
    """JSON file for the result, every rollout's answer included; `compare` reads it."""

    load: AdaptedModelSettings = AdaptedModelSettings()
    tasks: TaskSettings = TaskSettings()
    harness: HarnessSettings = HarnessSettings()
    rollouts: RolloutSettings = RolloutSettings()
    export: TraceExportSettings = TraceExportSettings()


class CompareSettings(JsonSettings):
    """The settings of `compare`."""

    runs: list[str] = Field(default=[], json_schema_extra={"argument": True})
    """Folders of runs, or files that `eval --output` wrote, the one to compare with first. FOLDER:NAME takes the
    measurement NAME of a run, as "outputs/mine:before"."""
    evaluation: str | None = None
    """Measurement to take of every run, as "after RL"; by default the last of each on its own held-out tasks, not on
    those of `transfer`."""


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
        "Learning from use": ("learn_from_use", "session_store", "sessions.*"),
        "Limits of requests": ("limits.*", "grammars.*"),
        "Server": ("server.*", "engine.cache_mib", "engine.cuda_graphs", "engine.max_waiting"),
    }
    helps: ClassVar[Mapping[str, str]] = {
        "engine.cache_mib": "Size of the key/value cache in MiB; requests that do not fit into it wait.",
    }

    served_model_name: str | None = None
    """Name that clients ask for; by default the name of the model's folder, or its Hugging Face id. The model without
    its adapter is NAME-base."""
    learn_from_use: Path | None = None
    """Folder of the sessions that are recorded, by consent, and of the versions that `learn` makes of them, which are
    served as soon as they are there."""
    session_store: str | None = None
    """Store of the sessions, where it is not the file in that folder: a URL or a file."""

    sessions: SessionSettings = SessionSettings()
    load: AdaptedModelSettings = AdaptedModelSettings()
    answers: AnswerSettings = AnswerSettings()
    server: ServerSettings = ServerSettings()
    limits: RequestLimits = RequestLimits()
    grammars: GrammarLimits = GrammarLimits()
    engine: EngineSettings = EngineSettings()


class PollSettings(Settings):
    """The pace of a command that looks again and again at what others write."""

    once: bool = False
    """Do what can be done now, and end; otherwise go on until Ctrl-C."""
    poll_seconds: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Seconds between two looks."""


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
    """Data set: `arithmetic`, `medical`, `gsm_symbolic`, `gsm8k`, a family of tasks (`countdown`, `units`, `guess`,
    `wordle`, `retrieval`, `reasoning_gym:NAME`), a file, a folder, `owner/name` on the Hub, or `module:function`."""
    form: Literal["sft", "rl", "preference", "unpaired"] = "sft"
    """Form of training."""
    split: Literal["train", "val", "test", "transfer", "all"] = "train"
    """Part of the data; `transfer` is for arithmetic and for families of tasks, `all` for files."""
    max_samples: int | None = Field(default=None, ge=0)
    """Number of examples to draw; by default all, of generated data sets 1000."""
    show: int = Field(default=3, ge=0)
    """Number of examples to show."""
    output: Path | None = None
    """JSONL file for the examples, as training reads them."""
    check_splits: bool = False
    """Compare the questions of all splits, `transfer` too where there is one, with each other instead: the same ones,
    the same ones with other numbers, and how many of their runs of words come back."""
    ngram: int = Field(default=8, ge=1)
    """Words of a run with `check_splits`."""
