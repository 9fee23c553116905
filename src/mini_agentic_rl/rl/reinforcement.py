"""Reinforcement learning under a `TrainingConfig`: prompts, a reward function, and an algorithm by its name."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..algorithm import (
    PRESETS,
    Backend,
    GRPOSettings,
    MiniGRPO,
    MiniPPO,
    PPOSettings,
    ReinforcementLearning,
    peak_memory_bytes,
    read_progress,
)
from ..errors import UserError
from ..jobs.checks import check_model
from ..jobs.summary import versions
from ..metrics import make_logger
from ..policy import LearnerSettings, LoraSettings, adapter_folder
from ..trainer import Trainer
from ..trainer.run_folder import RunFolder
from ..trainer.statistics import accuracy_row
from .config import TrainingConfig
from .event_loop import outside_of_loops
from .models import model_source, tracking_project
from .prompt_agent import PromptAgent, RewardFunction

PPO = "ppo"
VARIANTS: tuple[str, ...] = tuple(PRESETS)
"""GRPO and what is made of it by settings."""
ALGORITHMS: tuple[str, ...] = (*VARIANTS, PPO)
"""Names of the algorithms."""

N_RUNNERS = 128
"""Rollouts that run at the same time."""


def reinforce(
    algorithm: str,
    config: TrainingConfig,
    rows: Sequence[Mapping[str, Any]],
    reward_fn: RewardFunction,
    folder: str | Path,
    *,
    eval_rows: Sequence[Mapping[str, Any]] = (),
    backend: Backend = "native",
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train on tasks and return the summary of the run. The adapter is in `adapter/` of the folder, and in `epoch_N/`
    as it was after each epoch.

    Args:
        algorithm: a name in `ALGORITHMS`.
        rows: tasks with a `prompt`, and what the reward function needs besides.
        reward_fn: see `RewardFunction`.
        eval_rows: tasks that are measured before and after; none leaves that out.
        backend: who turns rewards into new weights: "native", or TRL's trainer, "trl".
        resume: go on with the run in the folder.
        overwrite: replace the run in the folder.

    Raises:
        UserError: a setting cannot work, or the folder holds something else.
    """
    model = model_source(config)
    check_model(model, "auto")
    learner = make_algorithm(algorithm, config, model, backend=backend)
    run = RunFolder(folder)
    about = {**config.to_dict(), "output_dir": str(folder), "algorithm": algorithm, "backend": backend}
    state = run.begin(about, resume=resume, overwrite=overwrite)
    if state == "finished":
        return run.read_summary()
    latest = run.latest_checkpoint() if state == "resumed" else None
    logged = -1 if latest is None else read_progress(latest[1]).logged - 1
    started = time.perf_counter()
    with (
        tracking_project(config),
        make_logger(config.loggers, run.path, resume_step=logged if state == "resumed" else None) as logger,
    ):
        trainer = Trainer(
            algorithm=learner, n_runners=N_RUNNERS, output_dir=folder, logger=logger, resume=state == "resumed"
        )
        agent = agent_of(config, reward_fn)
        outside_of_loops(lambda: trainer.fit(agent, list(rows), val_dataset=list(eval_rows)))
    summary = _summary(learner, algorithm, config, run, time.perf_counter() - started)
    run.write_summary(summary)  # last: it marks the run as finished
    return summary


def make_algorithm(
    algorithm: str, config: TrainingConfig, model: str, *, backend: Backend = "native"
) -> ReinforcementLearning[Any]:
    """The algorithm of this name, with the settings that `config` has for it.

    Raises:
        UserError: there is no such algorithm, or a setting cannot work.
    """
    if algorithm not in ALGORITHMS:
        raise UserError(f"algorithm {algorithm!r} is unknown: choose {', '.join(ALGORITHMS)}")
    if not config.use_lora and adapter_folder(model) is not None:
        raise UserError(f"use_lora=False trains whole weights, but model_name {model!r} is an adapter: merge it first")
    options: dict[str, Any] = {
        "lora": lora_of(config) if config.use_lora else None,
        "learner": LearnerSettings(
            learning_rate=config.learning_rate,
            warmup_steps=config.warmup_steps,
            schedule="linear",
            checkpointing=config.gradient_checkpointing,
        ),
        "load_options": {"dtype": config.dtype},
    }
    values = _loop_settings(config)
    if algorithm == PPO:
        if backend != "native":
            raise UserError("backend='trl' is for GRPO and its variants: PPO takes backend='native'")
        return MiniPPO(model, settings=PPOSettings(**values), **options)
    preset = next(name for name in VARIANTS if name == algorithm)
    return MiniGRPO(model, settings=GRPOSettings(preset=preset, **values), backend=backend, **options)


def agent_of(config: TrainingConfig, reward_fn: RewardFunction) -> PromptAgent:
    """The agent that asks with a row's prompt."""
    return PromptAgent(reward_fn, sampling={} if config.top_p == 1.0 else {"top_p": config.top_p})


def lora_of(config: TrainingConfig) -> LoraSettings:
    """The adapter that `config` asks for, without dropout."""
    targets = config.lora_target_modules
    return LoraSettings(
        r=config.lora_r, alpha=config.lora_alpha, target_modules="all-linear" if targets is None else tuple(targets)
    )


def _loop_settings(config: TrainingConfig) -> dict[str, Any]:
    values: dict[str, Any] = {
        "tasks_per_step": config.per_device_train_batch_size * config.gradient_accumulation_steps,
        "temperature": config.temperature,
        "max_new_tokens": config.max_new_tokens,
        "eval_every": config.eval_steps,
        "eval_size": None,
        "seed": config.seed,
    }
    chosen = {
        "total_steps": config.max_steps,
        "total_epochs": config.num_train_epochs if config.max_steps is None else None,
        "samples_per_prompt": config.samples_per_prompt,
        "checkpoint_every": config.save_steps,
    }
    return values | {name: value for name, value in chosen.items() if value is not None}


def _summary(
    learner: ReinforcementLearning[Any], algorithm: str, config: TrainingConfig, run: RunFolder, seconds: float
) -> dict[str, Any]:
    found = learner.summary
    means = {one.name: sum(one.rewards) / max(1, len(one.rewards)) for one in learner.evaluations}
    return {
        "algorithm": algorithm,
        "model": config.model_name,
        "output_dir": str(run.path),
        "adapter": str(run.adapter_path),
        "accuracy": [accuracy_row(row["name"], row["correct"], row["count"]) for row in found["accuracy"]],
        "mean_reward": means,
        "steps": found["steps"],
        "untrained": found["untrained"],
        "seconds": {**found["seconds"], "this process": seconds},
        "peak_memory_bytes": peak_memory_bytes(),
        "versions": versions(),
        "seed": config.seed,
    }
