"""`TrainConfig`: the one configuration of a training. Its groups are the settings classes of what they set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, ValidationInfo, WrapValidator, field_validator

from ..algorithm import PRESETS, GRPOSettings, PPOSettings, WarmStartSettings
from ..config import COMMAS, JsonSettings, Settings
from ..gateway import RolloutLimits
from ..policy import EngineSettings, LearnerSettings, LoraSettings, ModelSettings
from ..trainer import RunnerSettings, RunSettings

PPO = "ppo"
_ALGORITHMS = (*PRESETS, PPO)
if TYPE_CHECKING:
    AlgorithmName: TypeAlias = str
else:  # the variants of GRPO, those among them that a program has added, and PPO
    AlgorithmName = Annotated[
        Literal[_ALGORITHMS],
        WrapValidator(lambda value, choices: value if isinstance(value, str) and value in PRESETS else choices(value)),
    ]
Backend = Literal["native", "trl"]

DECIDED: Sequence[str] = sorted({name for preset in PRESETS.values() for name in preset})
"""Settings of the loop that the algorithm decides where they are not given."""
CRITIC: Sequence[str] = [name for name in PPOSettings.model_fields if name not in GRPOSettings.model_fields]
"""Settings of the loop that PPO alone has."""


class TaskSettings(Settings):
    """Which agent, on which tasks."""

    agent: str = "math"
    """Agent: `math`, `sql` (with the defaults of `train-sql`), or `module:ClassName` of a LitAgent of yours."""
    dataset: str = "arithmetic"
    """Tasks: `arithmetic` (generated), `medical` (for the SQL agent), `gsm_symbolic`, `gsm8k`, a file (JSONL, JSON,
    CSV, TSV or Parquet) with `question` and `answer`, a folder with such files, or `owner/name` on the Hub."""
    difficulty: Annotated[list[int], COMMAS] = Field(default=[1, 2])
    """Levels of the arithmetic and medical tasks, from 1 to 4; several with commas, as 1,2."""


class TrainConfig(RunnerSettings, JsonSettings):
    """The configuration of `train`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "loop.total_steps": 12,
        "loop.tasks_per_step": 12,
        "loop.samples_per_prompt": 8,
        "loop.epochs_per_batch": 1,
        "loop.max_new_tokens": None,
        "learner.learning_rate": 8e-4,
        "learner.schedule": "linear",
        "warm_start.examples": 32,
        "run.output_dir": Path("outputs/math-agent"),
        **{f"loop.{name}": None for name in (*DECIDED, *CRITIC)},
    }
    """Defaults of the main job that differ from the library's, and why. The library's defaults (30 steps of 8 tasks, a
    constant learning rate of 5e-4) are those of an algorithm that does not know what it is given. The main job knows:
    it trains the embedded model on arithmetic, on a CPU within minutes, and so takes fewer and larger steps, at a
    higher learning rate that falls, after a short imitation. With PPO, too, it takes these numbers of rollouts and
    passes, so that runs of different algorithms compare. None is what the algorithm or the agent decides."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Tasks": ("tasks.*", "max_samples", "loop.eval_size"),
        "Model": (
            "load.*",
            "preset",
            "loop.tool_format",
            "loop.thinking",
            "lora.r",
            "lora.alpha",
            "lora.dropout",
            "full_finetune",
        ),
        "Run": (
            "run.output_dir",
            "loop.seed",
            "loop.deterministic",
            "loop.eval_every",
            "loop.checkpoint_every",
            "run.console",
            "run.loggers",
            "run.resume",
            "run.overwrite",
            "json_output",
        ),
        "Warm-up (SFT)": ("warm_start.examples", "warm_start.learning_rate"),
        "Reinforcement learning": (
            "algorithm",
            "backend",
            "loop.total_steps",
            "loop.total_epochs",
            "loop.tasks_per_step",
            "loop.samples_per_prompt",
            "loop.temperature",
            "loop.max_new_tokens",
            "learner.learning_rate",
            "learner.warmup_steps",
            "learner.schedule",
            "loop.credit",
            "loop.credit_discount",
            "loop.dynamic_sampling",
            "loop.max_sampling_rounds",
            "loop.curriculum",
            "loop.epochs_per_batch",
            "learner.max_batch_tokens",
            "learner.checkpointing",
            "engine.cache_mib",
            "n_runners",
            "loop.gateway_port",
            "loop.rollout_timeout",
            "loop.on_failure",
            "loop.max_attempts",
        ),
        "Rewards and loss": (
            "loop.baseline",
            "loop.normalize_advantage",
            "loop.advantage_normalization",
            "loop.policy_loss",
            "loop.clip_ratio",
            "loop.clip_ratio_high",
            "loop.loss_aggregation",
            "loop.max_trajectory_tokens",
            "loop.importance_correction",
            "loop.importance_cap",
            "loop.kl_coef",
            "loop.kl_estimator",
            "loop.kl_in_reward",
            "loop.entropy_coef",
            "loop.mask_truncated",
            "loop.overlong_buffer",
            "loop.overlong_penalty",
        ),
        "Critic (--algorithm ppo)": tuple(f"loop.{name}" for name in CRITIC),
        "Limits of a rollout": ("limits.*",),
    }
    helps: ClassVar[Mapping[str, str]] = {
        "loop.max_new_tokens": "At most this many sampled tokens in one model call; by default what the agent needs: "
        "96 for `sql`, 48 for `arithmetic`, else 128.",
    }

    algorithm: AlgorithmName = "grpo"
    """Published algorithm. It decides what is not given by name under "Rewards and loss"; `ppo` has a critic."""
    backend: Backend = "native"
    """Backend that turns rewards into new weights: this package, or TRL's GRPOTrainer (needs the `trl` extra)."""
    full_finetune: bool = False
    """Train every weight instead of a LoRA adapter."""
    max_samples: int | None = Field(default=None, ge=1)
    """Train on at most this many tasks; by default on all (of arithmetic 10,000, of medical 2,000)."""
    preset: Literal["none", "4gb"] = "none"
    """`4gb` chooses quantization, checkpointing, tokens per pass and cache so that the run fits a card (or a process on
    the CPU) of 4 GB, as `mini-agentic-rl plan --vram 4GB` does; it only ever saves more than was asked for."""

    load: ModelSettings = ModelSettings()
    tasks: TaskSettings = TaskSettings()
    warm_start: WarmStartSettings = WarmStartSettings()
    loop: GRPOSettings | PPOSettings = GRPOSettings()
    lora: LoraSettings = LoraSettings()
    learner: LearnerSettings = LearnerSettings()
    engine: EngineSettings = EngineSettings()
    limits: RolloutLimits = RolloutLimits()
    run: RunSettings = RunSettings()

    @field_validator("loop", mode="wrap")
    @classmethod
    def _loop_of_algorithm(cls, value: Any, handler: Any, info: ValidationInfo) -> GRPOSettings | PPOSettings:
        """Read the loop as the settings of the algorithm that was chosen."""
        algorithm = info.data.get("algorithm")
        if not isinstance(value, Mapping) or algorithm is None:
            loop: GRPOSettings | PPOSettings = handler(value)
            return loop
        tasks = info.data.get("tasks", TaskSettings())
        given = {"max_new_tokens": tokens_of_call(tasks), **value}
        if algorithm == PPO:
            return PPOSettings(**given)
        foreign = next((name for name in CRITIC if name in given), None)
        if foreign is not None:
            raise ValueError(f"`{foreign}` is PPO's: give `algorithm=ppo` with it")
        return GRPOSettings(**{**given, "preset": algorithm})


class SqlTrainConfig(TrainConfig):
    """The configuration of `train-sql`: all that `train` has, with the SQL agent."""

    defaults: ClassVar[Mapping[str, Any]] = {
        **TrainConfig.defaults,
        "tasks.agent": "sql",
        "tasks.dataset": "medical",
        "tasks.difficulty": [1],
        "warm_start.examples": 192,
        "learner.max_batch_tokens": 1200,
        "run.output_dir": Path("outputs/sql-agent"),
    }
    """The SQL agent needs more examples until it writes queries at all, and has longer rollouts: those of a question
    with their prompt are about 1,000 tokens."""
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Tasks": TrainConfig.panels["Tasks"],
        "SQL agent": ("database", "reward_model_url", "execution_weight", "answer_weight"),
        **TrainConfig.panels,
        "Where it runs": ("ci_fast", "llm_proxy", "external_store_address"),
    }
    helps: ClassVar[Mapping[str, str]] = {
        **TrainConfig.helps,
        "tasks.agent": 'Agent to train: `sql`; the settings under "SQL agent" are for no other.',
        "tasks.dataset": "Tasks: `medical` (generated), or a file with `question`, `answer` and the gold query as "
        "`sql`.",
        "tasks.difficulty": "Levels of the questions, from 1 (one row of one table) to 4 (several joins); several with "
        "commas, as 1,2.",
        "warm_start.examples": "How many generated example conversations to imitate before reinforcement learning; 0 "
        "leaves it out. From 32 the embedded model learns to call the tool, from 192 to write right queries for most "
        "questions of level 1.",
        "learner.max_batch_tokens": "Packed tokens per forward-backward pass; a question's rollouts with their prompt "
        "are about 1,000.",
    }

    database: Path | None = None
    """SQLite file to ask; by default the medical one, which is generated."""
    reward_model_url: str | None = None
    """Address of a reward model (`mini-agentic-rl score-server`) that judges answers; without it an answer is good that
    states the values that the gold query gives."""
    execution_weight: float = 1.0
    """Weight of a right result in the reward, 1 or more."""
    answer_weight: float = 0.2
    """Weight of the answer's quality in the reward, from 0 to below 1."""

    ci_fast: bool = False
    """One step on a few tasks, to see that everything works."""
    llm_proxy: bool = False
    """Put an LLM proxy in front of the model that is trained: it records the calls, in place of the model's server."""
    external_store_address: str | None = None
    """Address of a store server that runs already (`agl store --port 9999`), as http://localhost:9999. With
    AGL_MANAGED_STORE=0 each runner is a process of its own, and one on this computer is found without its address."""


def with_agent_defaults(config: TrainConfig) -> TrainConfig:
    """Return the configuration of `train-sql` with what was given, for `agent=sql`; any other as it is."""
    if config.tasks.agent != "sql" or isinstance(config, SqlTrainConfig):
        return config
    return SqlTrainConfig(**config.model_dump(exclude_unset=True))


def tokens_of_call(tasks: TaskSettings) -> int:
    """Return the tokens that a call of an agent needs: a query, an expression, or a step of a solution in words."""
    if tasks.agent == "sql":
        return 96
    return 48 if tasks.dataset == "arithmetic" else 128
