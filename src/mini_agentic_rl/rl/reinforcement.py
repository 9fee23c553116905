"""Reinforcement learning under a `TrainingConfig`: prompts, a reward function, and an algorithm by its name."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ..algorithm import PRESETS, Backend, ReinforcementLearning
from ..errors import UserError
from ..jobs import PPO, TrainConfig, check_model, last_logged, training_summary
from ..jobs import make_algorithm as make_from_config
from ..policy import adapter_folder
from ..trainer import RecordedRun, RunFolder, RunnerSettings, RunSettings, Trainer, record_run
from .config import TrainingConfig
from .event_loop import outside_of_loops
from .models import model_source, tracking_project
from .prompt_agent import PromptAgent, RewardFunction

ALGORITHMS: tuple[str, ...] = (*PRESETS, PPO)
"""Names of the algorithms: GRPO and what is made of it by settings, and PPO."""

NAMES: Mapping[str, str] = {
    "dtype": "load.dtype",
    "max_steps": "loop.total_steps",
    "samples_per_prompt": "loop.samples_per_prompt",
    "max_new_tokens": "loop.max_new_tokens",
    "temperature": "loop.temperature",
    "eval_steps": "loop.eval_every",
    "save_steps": "loop.checkpoint_every",
    "seed": "loop.seed",
    "learning_rate": "learner.learning_rate",
    "warmup_steps": "learner.warmup_steps",
    "gradient_checkpointing": "learner.checkpointing",
    "lora_r": "lora.r",
    "lora_alpha": "lora.alpha",
}
"""Names of `TrainingConfig`, and where they are in the one configuration. None leaves a setting as it is there."""


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

    def fit(run: RecordedRun) -> dict[str, Any]:
        started = time.perf_counter()
        trainer = Trainer(
            algorithm=learner,
            n_runners=RunnerSettings().n_runners,
            output_dir=run.folder.path,
            logger=run.logger,
            resume=run.is_resumed,
        )
        agent = agent_of(config, reward_fn)
        outside_of_loops(lambda: trainer.fit(agent, list(rows), val_dataset=list(eval_rows)))
        means = {one.name: sum(one.rewards) / max(1, len(one.rewards)) for one in learner.evaluations}
        return {
            "algorithm": algorithm,
            "model": config.model_name,
            "output_dir": str(run.folder.path),
            "adapter": str(run.folder.adapter_path),
            "mean_reward": means,
            **training_summary(learner, seconds=time.perf_counter() - started, seed=config.seed),
        }

    about = {**config.to_dict(), "output_dir": str(folder), "algorithm": algorithm, "backend": backend}
    settings = RunSettings(output_dir=Path(folder), loggers=config.loggers, resume=resume, overwrite=overwrite)
    with tracking_project(config):
        return record_run(RunFolder(folder), settings, about, fit, last_logged=last_logged)


class PromptConfig(TrainConfig):
    """The configuration of `train` for rows with a prompt: what `TrainingConfig` does not name is the library's."""

    defaults: ClassVar[Mapping[str, Any]] = {"learner.schedule": "linear"}
    """As the trainers of transformers let it, the learning rate falls."""


def train_config(algorithm: str, config: TrainingConfig, *, backend: Backend = "native") -> PromptConfig:
    """Return the one configuration that says what a `TrainingConfig` says.

    Raises:
        UserError: there is no such algorithm.
    """
    if algorithm not in ALGORITHMS:
        raise UserError(f"algorithm {algorithm!r} is unknown: choose {', '.join(ALGORITHMS)}")
    given: dict[str, Any] = {path: getattr(config, name) for name, path in NAMES.items()}
    given["loop.tasks_per_step"] = config.per_device_train_batch_size * config.gradient_accumulation_steps
    given["loop.total_epochs"] = config.num_train_epochs if config.max_steps is None else None
    targets = config.lora_target_modules
    given["lora.target_modules"] = None if targets is None else tuple(targets)
    groups: dict[str, dict[str, Any]] = {}
    for path, value in given.items():
        group, _, name = path.partition(".")
        if value is not None:
            groups.setdefault(group, {})[name] = value
    groups["loop"]["eval_size"] = None  # all of them
    values: Mapping[str, Any] = {**groups, "algorithm": algorithm, "backend": backend}
    return PromptConfig(full_finetune=not config.use_lora, **values)


def make_algorithm(
    algorithm: str, config: TrainingConfig, model: str, *, backend: Backend = "native"
) -> ReinforcementLearning[Any]:
    """Return the algorithm of this name, with the settings that `config` has for it.

    Raises:
        UserError: there is no such algorithm, or a setting cannot work.
    """
    if not config.use_lora and adapter_folder(model) is not None:
        raise UserError(f"use_lora=False trains whole weights, but model_name {model!r} is an adapter: merge it first")
    if algorithm == PPO and backend != "native":
        raise UserError("backend='trl' is for GRPO and its variants: PPO takes backend='native'")
    return make_from_config(train_config(algorithm, config, backend=backend), model=model)


def agent_of(config: TrainingConfig, reward_fn: RewardFunction) -> PromptAgent:
    """The agent that asks with a row's prompt."""
    return PromptAgent(reward_fn, sampling={} if config.top_p == 1.0 else {"top_p": config.top_p})
