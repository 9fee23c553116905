"""`TrainConfig`: the configuration of a training, made of the settings classes of its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from ..algorithm import PRESETS, GRPOSettings, PPOSettings, WarmStartSettings, is_preset
from ..config import COMMANDS_AT_ONCE, TOKENS_OF_COMMAND, WITHOUT_OPTION, HarnessSettings, JsonSettings
from ..datasets import MATH, family_type
from ..environments import tokens_of_call, training_defaults
from ..errors import UserError
from ..execution import RaySettings
from ..gateway import RolloutLimits
from ..plugins import OpenChoices
from ..policy import EngineSettings, LearnerSettings, LoraSettings, ModelSettings, RankSettings, adapter_folder
from ..samplers import SamplerSettings
from ..trainer import RunnerSettings, RunSettings, TraceExportSettings
from .tasks import TaskSettings, load_agent, matching_tasks

TRAIN_SHORT_HELP: Final[Sequence[str]] = (
    *("env", "agent", "dataset", "difficulty", "max_samples", "eval_size", "model", "device", "preset"),
    *("output_dir", "seed", "loggers", "resume", "overwrite", "json_output", "sft_examples", "algorithm"),
    *("total_steps", "tasks_per_step", "samples_per_prompt", "max_new_tokens", "learning_rate"),
)
"""Settings that `train --help` shows."""

PPO = "ppo"
_ALGORITHMS = (*PRESETS, PPO)
if TYPE_CHECKING:
    from ..environments import Recipe

    AlgorithmName: TypeAlias = str
else:  # the variants of GRPO, registered ones among them, and PPO
    AlgorithmName = Annotated[Literal[_ALGORITHMS], OpenChoices(is_preset)]
Backend = Literal["native", "trl"]

VARIED: Sequence[str] = sorted({name for preset in PRESETS.values() for name in preset})
"""Settings of the loop that the algorithm decides unless they are given."""
PPO_ALONE: Sequence[str] = [name for name in PPOSettings.model_fields if name not in GRPOSettings.model_fields]
"""Settings of the loop that only PPO has."""
GRPO_ALONE: Sequence[str] = [name for name in GRPOSettings.model_fields if name not in PPOSettings.model_fields]
"""Settings of the loop that only GRPO and its variants have."""
_UNSAFE = re.compile(r"[^\w.-]+")
"""Characters that are replaced in the name of a folder."""


def _paths(group: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{group}.{name}" for name in names)


def _main_job_defaults() -> Mapping[str, Any]:
    """Return the defaults of the agent `units`; none if that recipe is not installed."""
    try:
        return training_defaults("units", "units")
    except UserError:
        return {}


class TrainConfig(RunnerSettings, JsonSettings):
    """The configuration of `train`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        **_main_job_defaults(),
        "loop.samples_per_prompt": 8,
        "loop.epochs_per_batch": 1,
        "loop.max_new_tokens": None,
        "run.output_dir": Path("outputs/math-agent"),
        **{f"loop.{name}": None for name in (*VARIED, *PPO_ALONE)},
    }
    """Defaults of the main job, which trains the embedded model on `units` within minutes on a CPU; for other tasks see
    `with_agent_defaults`. PPO takes the same numbers of rollouts and passes, so that runs of different algorithms
    compare. None leaves a setting to the algorithm or the agent."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Tasks": ("tasks.*", "max_samples", "loop.eval_size"),
        "Model": (
            *("load.*", "preset", *_paths("loop", "tool_format", "thinking")),
            *(*_paths("lora", "r", "alpha", "dropout"), "full_finetune"),
        ),
        "Run": (
            "run.output_dir",
            *_paths("loop", "seed", "deterministic", "transfer_size", "validation_size", "checkpoint_every"),
            *_paths("run", "console", "loggers", "metrics_port"),
            *("export.otlp", "run.resume", "run.overwrite", "json_output"),
        ),
        "Agent that is a command": ("harness.*",),
        "Warm-up (SFT)": ("warm_start.examples", "warm_start.until"),
        "Reinforcement learning": (
            *("algorithm", "backend"),
            *_paths("loop", "total_steps", "total_epochs", "tasks_per_step", "samples_per_prompt", "temperature"),
            *("loop.max_new_tokens", "learner.learning_rate", "learner.schedule"),
            *_paths("loop", "credit", "dynamic_sampling", "curriculum", "expert_prefix"),
            *_paths("loop", "epochs_per_batch", "max_staleness"),
            *_paths("learner", "max_batch_tokens", "checkpointing"),
            *("engine.cache_mib", "engine.cuda_graphs", "ranks.shard"),
            *_paths("loop", "gateway_port", "gateway_host", "gateway_url", "rollout_timeout", "on_failure"),
        ),
        "Servers that sample": ("sampling.*",),
        "Rewards and loss": _paths(
            *("loop", "baseline", "policy_loss", "clip_ratio", "clip_ratio_high", "loss_aggregation"),
            *("importance_correction", "max_update_kl", "kl_coef", "entropy_coef", "mask_truncated"),
            "overlong_buffer",
        ),
        "Teachers, and what is imitated": _paths("loop", "reward_coef", "teacher", "sft_coef", "sft_per_step"),
        "Limits of a rollout": ("limits.*",),
        "Runners": ("n_runners", "strategy", "ray.*"),
        WITHOUT_OPTION: (
            *_paths("loop", "normalize_advantage", "advantage_normalization", "separate_rewards"),
            *_paths("loop", "separate_reward_weights", "distillation", "teacher_coef", "teacher_top_k", "echo_coef"),
            *_paths("loop", "credit_discount", "kl_estimator", "gamma", "gae_lambda", "value_clip", "value_coef"),
            *_paths("loop", "value_learning_rate", "value_warmup_steps", "value_trains_adapter", "kl_in_reward"),
            *_paths("loop", "overlong_penalty", "minibatches", "divergence_bound", "importance_cap"),
            *_paths("loop", "importance_floor", "eval_every", "validation_every", "patience", "max_sampling_rounds"),
            *_paths("loop", "max_attempts", "max_trajectory_tokens"),
            *_paths("warm_start", "learning_rate", "batch_size", "schedule"),
            *_paths("learner", "warmup_steps", "flex_attention"),
            *("run.metrics_host", *_paths("export", "otlp_messages", "otlp_tokens")),
            *_paths("harness", "agent_fields", "scratch_folder", "tampering", "sandbox_image", "sandbox_namespace"),
            *_paths("harness", "test_seconds", "sandbox_cpu_seconds", "sandbox_cpus", "sandbox_processes"),
            *_paths("harness", "sandbox_file_mib", "sandbox_disk_mib", "sandbox_output_kib"),
            *("ranks.rank_timeout", "ray.runner_gpus"),
            *_paths("sampling", "sampler_args", "sampler_timeout", "sampler_silence", "parity_bound"),
        ),
    }
    helps: ClassVar[Mapping[str, str]] = {
        "loop.max_new_tokens": "Maximum number of sampled tokens in one model call; the default depends on the agent: "
        "48 for `units`, `math` and `retrieval`, 96 for `sql`, 1024 for a command, 128 for an agent of your own.",
    }

    algorithm: AlgorithmName = "grpo"
    """Algorithm. It sets the defaults of the settings under "Rewards and loss"; `ppo` has a critic."""
    backend: Backend = "native"
    """Backend that turns rewards into new weights: this package, or TRL's GRPOTrainer (needs the `trl` extra)."""
    full_finetune: bool = False
    """Train every weight instead of a LoRA adapter."""
    max_samples: int | None = Field(default=None, ge=1)
    """Train on at most this many tasks; by default on all (10,000 of arithmetic, 2,000 of medical)."""
    preset: Literal["none", "4gb"] = "none"
    """`4gb` chooses quantization, checkpointing, tokens per pass and cache size so that the run fits into 4 GB of GPU
    memory, or 4 GB of a process on the CPU. It never uses more memory than the given settings."""

    load: ModelSettings = ModelSettings()
    tasks: TaskSettings = TaskSettings()
    harness: HarnessSettings = HarnessSettings()
    warm_start: WarmStartSettings = WarmStartSettings()
    loop: GRPOSettings | PPOSettings = GRPOSettings()
    lora: LoraSettings = LoraSettings()
    learner: LearnerSettings = LearnerSettings()
    engine: EngineSettings = EngineSettings()
    ranks: RankSettings = RankSettings()
    sampling: SamplerSettings = SamplerSettings()
    limits: RolloutLimits = RolloutLimits()
    ray: RaySettings = RaySettings()
    export: TraceExportSettings = TraceExportSettings()
    run: RunSettings = RunSettings()

    @field_validator("loop", mode="wrap")
    @classmethod
    def _loop_of_algorithm(cls, value: Any, handler: Any, info: ValidationInfo) -> GRPOSettings | PPOSettings:
        """Parse the loop as the settings of the chosen algorithm."""
        algorithm = info.data.get("algorithm")
        if not isinstance(value, Mapping) or algorithm is None:
            loop: GRPOSettings | PPOSettings = handler(value)
            return loop
        tasks = info.data.get("tasks", TaskSettings())
        harness = info.data.get("harness", HarnessSettings())
        tokens = TOKENS_OF_COMMAND
        if not harness.agent_command:
            matched = tasks if tasks.env else matching_tasks(tasks)
            tokens = tokens_of_call(matched.agent, matched.env or matched.dataset)
        given = {"max_new_tokens": tokens, **value}
        if algorithm == PPO:
            default = GRPOSettings.model_construct()  # a run folder's file has the defaults too
            foreign = next((name for name in GRPO_ALONE if given.get(name) not in (None, getattr(default, name))), None)
            if foreign is not None:
                raise ValueError(f"`{foreign}` is not PPO's: leave it out, or choose another `algorithm`")
            return PPOSettings(**{name: value for name, value in given.items() if name not in GRPO_ALONE})
        foreign = next((name for name in PPO_ALONE if name in given), None)
        if foreign is not None:
            raise ValueError(f"`{foreign}` is PPO's: give `algorithm=ppo` with it")
        return GRPOSettings(**{**given, "preset": algorithm})

    def completed(self) -> TrainConfig:
        return with_agent_defaults(self)

    def prepare(self) -> tuple[TrainConfig, Recipe, dict[str, Any]]:
        """Return the final settings, the agent, and arguments of the `Trainer` that the agent needs.

        Raises:
            UserError: there is no such agent, or a setting of it is invalid.
        """
        return self, load_agent(self.tasks, self.harness, [self.run.output_dir]), {}


def config_of_agent(agent: str) -> type[TrainConfig] | None:
    """Return the subclass of `TrainConfig` of an agent with settings of its own, as `sql`; None for other agents."""
    family = None if ":" in agent else family_type(agent)
    return None if family is None else family.train_config()


def with_agent_defaults(config: TrainConfig) -> TrainConfig:
    """Return the configuration with the defaults of its agent and data set.

    An agent with settings of its own, as `sql`, gets its own configuration class. An agent brings its tasks, and tasks
    bring their agent. An adapter keeps the tool format that it was trained with.

    Raises:
        UserError: agent and data set do not belong together.
    """
    from ..environments import ENV

    own_config = config_of_agent(config.tasks.agent)
    if own_config is not None and not isinstance(config, own_config):
        config = own_config(**config.model_dump(exclude_unset=True))
    # `auto` reads the tool format from the adapter's tokenizer; the agent's default is for a new adapter.
    is_adapter = adapter_folder(config.load.model) is not None
    if is_adapter and "tool_format" not in config.loop.model_fields_set and config.loop.tool_format != "auto":
        config = config.changed(loop={"tool_format": "auto"})
    if type(config) is not TrainConfig:
        return config
    is_command = bool(config.harness.agent_command)
    tasks = matching_tasks(config.tasks, is_command=is_command)
    changes: dict[str, Any] = {"tasks": tasks}
    main = TaskSettings()
    is_main = not is_command and (tasks.agent, tasks.dataset) == (main.agent, main.dataset)
    if "output_dir" not in config.run.model_fields_set and not is_main:
        # the default, outputs/math-agent, is the folder of the main job
        agent = "command" if is_command else tasks.dataset if tasks.agent == MATH else tasks.agent
        name = _UNSAFE.sub("-", agent.removeprefix(ENV).partition("?")[0])
        changes["run"] = {"output_dir": Path("outputs", f"{name.strip('-')}-agent")}
    if is_command and "n_runners" not in config.model_fields_set:
        changes["n_runners"] = COMMANDS_AT_ONCE
    mixes = isinstance(config.loop, GRPOSettings) and config.backend == "native" and config.warm_start.examples > 0
    agent = "" if is_command else tasks.agent
    whole_steps = config.loop.max_staleness == 0
    for path, value in training_defaults(agent, tasks.dataset, mixes=mixes, whole_steps=whole_steps).items():
        group, name = path.split(".")
        settings = getattr(config, group)
        if name not in settings.model_fields_set and getattr(settings, name) != value:
            changes.setdefault(group, {})[name] = value
    return config.changed(**changes)


class PlanSettings(JsonSettings):
    """The settings of `plan`."""

    defaults: ClassVar[Mapping[str, Any]] = {"loop.max_new_tokens": 512}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("load.*",),
        "Memory": (
            *("vram", "lora.r", "lora.dropout", "learner.checkpointing", "learner.max_batch_tokens"),
            *("engine.cache_mib", "engine.cuda_graphs"),
        ),
        "Reinforcement learning": (
            *("loop.tasks_per_step", "loop.samples_per_prompt"),
            *("prompt_tokens", "loop.max_new_tokens", "loop.max_staleness"),
        ),
        "Spread": ("ranks", "team.shard", "sampling.sampler", "replicas", "rates"),
        "Run": ("json_output",),
    }
    helps: ClassVar[Mapping[str, str]] = {
        "loop.max_new_tokens": "Tokens that a rollout samples in all its calls together.",
    }

    vram: str | None = None
    """Memory of the GPU, as 4GB or 3500MB: chooses settings that fit into it beside the CUDA context (0.45 GB), and
    assumes bitsandbytes (the `quant` extra). Without it the given settings are planned as they are."""
    prompt_tokens: int = Field(default=512, ge=1)
    """Tokens of a task's prompt, system prompt and tools included."""
    ranks: int = Field(default=1, ge=1)
    """Processes that learn, each with a share of the step's tasks."""
    replicas: int = Field(default=0, ge=0)
    """Servers that sample for the ranks. 0 plans one server where `sampler` is not `own` or the base is sharded; else
    each rank samples its share itself."""
    rates: Path | None = None
    """Folder of a run whose measured rates predict the seconds of a step. By default the rates that `doctor` measured
    on this computer, else those of a 2-core machine; none for a GPU."""

    load: ModelSettings = ModelSettings()
    lora: LoraSettings = LoraSettings()
    learner: LearnerSettings = LearnerSettings()
    engine: EngineSettings = EngineSettings()
    sampling: SamplerSettings = SamplerSettings()
    team: RankSettings = RankSettings()
    loop: GRPOSettings = GRPOSettings()
