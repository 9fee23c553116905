"""`train`: measure, warm up, reinforce, measure again, and write down what happened."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ..algorithm import MiniGRPO, MiniPPO, ReinforcementLearning, WarmStart, peak_memory_bytes
from ..errors import UserError
from ..gateway import GatewayLimits
from ..metrics import MetricsLogger, make_logger, read_metrics
from ..policy import EngineSettings, LearnerSettings, LoraSettings, adapter_folder
from ..recipes import Recipe, load_recipe, load_tasks
from ..trainer import Trainer
from ..trainer.parts import asks_for_processes
from ..trainer.report import write_report
from ..trainer.run_folder import RunFolder
from ..trainer.statistics import accuracy_row
from .pieces import check_model, transcripts, versions, warm_start
from .plan import apply_preset
from .roles import current_role
from .settings import TrainSettings
from .sql import prepare_sql
from .sql_settings import SqlTrainSettings, with_agent_defaults

_TRANSCRIPTS = 6
_PROCESSES = 4

_OF_ALGORITHM = (
    "dynamic_sampling",
    "baseline",
    "normalize_advantage",
    "advantage_normalization",
    "policy_loss",
    "clip_ratio",
    "clip_ratio_high",
    "loss_aggregation",
    "importance_correction",
    "kl_in_reward",
    "overlong_buffer",
)
"""Settings that the algorithm decides where they are not given."""


def train_job(settings: TrainSettings) -> dict[str, Any]:
    """Run the job and return its summary.

    Where AGL_CURRENT_ROLE is `runner` it runs the agent for an algorithm elsewhere until it is stopped, writes nothing,
    and has an empty summary.

    Raises:
        UserError: a setting cannot work, or the output folder holds something else.
    """
    settings = with_agent_defaults(settings)
    parts: dict[str, Any] = {}
    if isinstance(settings, SqlTrainSettings):
        settings, recipe, parts = prepare_sql(settings)
    else:
        recipe = load_recipe(settings.agent)
    if current_role() == "runner":
        return _run_agent(settings, recipe, parts)
    check_model(settings.model, settings.device)
    settings = apply_preset(settings)
    train = load_tasks(settings.dataset, "train", settings.max_samples, settings.seed, settings.difficulty)
    held_out = load_tasks(settings.dataset, "test", settings.eval_size, 0, settings.difficulty)
    algorithm = _algorithm(settings, warm_start(recipe, train, settings.sft_examples, settings.sft_learning_rate))
    folder = RunFolder(settings.output_dir)
    state = folder.begin(settings.model_dump(mode="json"), resume=settings.resume, overwrite=settings.overwrite)
    if state == "finished":
        return folder.read_summary()
    latest = folder.latest_checkpoint() if state == "resumed" else None
    resume_step = _logged_before(latest) if state == "resumed" else None
    started = time.perf_counter()
    with make_logger(settings.loggers, folder.path, resume_step=resume_step) as logger:
        trainer = Trainer(
            algorithm=algorithm,
            hooks=recipe.hooks,
            n_runners=_runners(settings, parts),
            output_dir=settings.output_dir,
            logger=logger,
            resume=state == "resumed",
            **parts,
        )
        trainer.fit(recipe.agent, train, val_dataset=held_out)
    summary = _summary(algorithm, settings, time.perf_counter() - started)
    with folder.writing(folder.report_path):
        write_report(
            folder,
            summary=summary,
            metrics_rows=read_metrics(folder.metrics_path),
            transcripts=transcripts(algorithm.evaluations[-1] if algorithm.evaluations else None, _TRANSCRIPTS),
        )
    folder.write_summary(summary)  # last: it marks the run as finished
    return summary


def _run_agent(settings: TrainSettings, recipe: Recipe, parts: Mapping[str, Any]) -> dict[str, Any]:
    """The side of the runners. The output folder is the algorithm's, who may use it at the same time."""
    trainer = Trainer(
        hooks=recipe.hooks, n_runners=_runners(settings, parts), store=parts.get("store"), logger=MetricsLogger()
    )
    trainer.fit(recipe.agent)
    return {}


def _runners(settings: TrainSettings, parts: Mapping[str, Any]) -> int:
    """How many runners there are; not too many, where each is a process of its own."""
    in_this_process = parts.get("strategy") == "shm" or not asks_for_processes()
    return settings.n_runners if in_this_process else min(_PROCESSES, settings.n_runners)


def _algorithm(settings: TrainSettings, imitation: WarmStart | None) -> ReinforcementLearning[Any]:
    if settings.full_finetune and adapter_folder(settings.model) is not None:
        raise UserError(
            f"--full-finetune trains whole weights, but --model {settings.model} is an adapter: "
            "merge it into its base first"
        )
    if settings.full_finetune and settings.quantization != "none":
        raise UserError("--full-finetune cannot train quantised weights: use --quantization none, or LoRA")
    try:
        return _made(settings, imitation)
    except ValidationError as error:
        raise UserError("; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())) from None


def _made(settings: TrainSettings, imitation: WarmStart | None) -> ReinforcementLearning[Any]:
    kind: type[ReinforcementLearning[Any]] = MiniGRPO
    own: dict[str, Any] = {"preset": settings.algorithm}
    if settings.algorithm == "ppo":
        kind, own = MiniPPO, settings.critic_options()
    elif settings.critic_options():
        option = "--" + next(iter(settings.critic_options())).replace("_", "-")
        raise UserError(f"{option} is PPO's: give --algorithm ppo with it")
    return kind(
        settings.model,
        settings=kind.settings_class(
            **own,
            **_given(settings),
            total_steps=settings.total_steps,
            total_epochs=settings.total_epochs,
            tasks_per_step=settings.tasks_per_step,
            samples_per_prompt=settings.samples_per_prompt,
            temperature=settings.temperature,
            max_new_tokens=settings.call_tokens,
            credit=settings.credit,
            credit_discount=settings.credit_discount,
            max_sampling_rounds=settings.max_sampling_rounds,
            curriculum=settings.curriculum,
            max_trajectory_tokens=settings.max_trajectory_tokens,
            importance_cap=settings.importance_cap,
            kl_coef=settings.kl_coef,
            kl_estimator=settings.kl_estimator,
            entropy_coef=settings.entropy_coef,
            mask_truncated=settings.mask_truncated,
            overlong_penalty=settings.overlong_penalty,
            epochs_per_batch=settings.epochs_per_batch,
            eval_size=settings.eval_size,
            eval_every=settings.eval_every,
            checkpoint_every=settings.checkpoint_every,
            rollout_timeout=settings.rollout_timeout,
            on_failure=settings.on_failure,
            max_attempts=settings.max_attempts,
            tool_format=settings.tool_format,
            thinking=settings.thinking,
            seed=settings.seed,
            deterministic=settings.deterministic,
        ),
        engine=EngineSettings(cache_mib=settings.cache_mib),
        lora=None if settings.full_finetune else LoraSettings(r=settings.lora_r, alpha=settings.lora_alpha),
        learner=LearnerSettings(
            learning_rate=settings.learning_rate,
            warmup_steps=settings.warmup_steps,
            schedule=settings.lr_schedule,
            checkpointing=settings.gradient_checkpointing,
            max_batch_tokens=settings.max_batch_tokens,
        ),
        warm_start=imitation,
        limits=GatewayLimits(
            max_rollout_calls=settings.max_rollout_calls, max_rollout_tokens=settings.max_rollout_tokens
        ),
        backend=settings.backend,
        load_options={"dtype": settings.dtype, "device": settings.device, "quantization": settings.quantization},
    )


def _given(settings: TrainSettings) -> dict[str, Any]:
    """What was chosen against the algorithm's defaults."""
    return {name: value for name in _OF_ALGORITHM if (value := getattr(settings, name)) is not None}


def _logged_before(latest: Any) -> int:
    """Last metrics row that a resumed run keeps: what was logged after its checkpoint is done again."""
    from ..algorithm import read_progress

    return -1 if latest is None else read_progress(latest[1]).logged - 1


def _summary(algorithm: ReinforcementLearning[Any], settings: TrainSettings, seconds: float) -> dict[str, Any]:
    found = algorithm.summary
    return {
        "accuracy": [accuracy_row(row["name"], row["correct"], row["count"]) for row in found["accuracy"]],
        "seconds": {**found["seconds"], "this process": seconds},
        "steps": found["steps"],
        "untrained": found["untrained"],
        "peak_memory_bytes": peak_memory_bytes(),
        "versions": versions(),
        "seed": settings.seed,
        "model": settings.model,
        "dataset": settings.dataset,
    }
