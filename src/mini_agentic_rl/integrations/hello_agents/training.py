"""Run a HelloAgents configuration through our jobs: supervised fine-tuning and reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ... import post_training
from ...algorithm import PRESETS, Backend
from ...commands import PPO, TrainConfig, check_model, make_algorithm
from ...errors import UserError
from ...litagent import LitAgent
from ...metrics import check_loggers
from ...policy import adapter_folder
from ...post_training import (
    DPOSettings,
    KTOSettings,
    ORPOSettings,
    PostTrainingSettings,
    RewardModelSettings,
    SFTSettings,
)
from ...rewards import RewardFunction
from ...trainer import RunFolder, RunnerSettings, RunSettings, Trainer, recorded
from .config import TrainingConfig, model_source, outside_of_loops, tracking_project
from .prompt_agent import PromptAgent

# Training on written rows under a `TrainingConfig`: SFT, preferences, and reward models.


SUPERVISED: Mapping[str, tuple[type[PostTrainingSettings], str, str]] = {
    "sft": (SFTSettings, "sft", "train_sft"),
    "dpo": (DPOSettings, "preference", "train_dpo"),
    "kto": (KTOSettings, "unpaired", "train_kto"),
    "orpo": (ORPOSettings, "preference", "train_orpo"),
    "reward": (RewardModelSettings, "preference", "train_reward_model"),
}
"""Of each method its settings, the form of its rows, and the function of `post_training` that runs it."""

_SAME = sorted(
    {*TrainingConfig.model_fields, "dtype", "loggers"} & PostTrainingSettings.model_fields.keys() - {"output_dir"}
)
"""Settings with the same name in `TrainingConfig` and in every method."""


def supervise(
    method: str,
    config: TrainingConfig,
    rows: Sequence[Mapping[str, Any]],
    folder: str | Path,
    *,
    options: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train on rows in the form of the method into `folder`, and return the summary of the run.

    Args:
        method: a name in `SUPERVISED`.
        options: settings of the method that `config` does not have, as `beta`.
        resume: continue the run in the folder.
        overwrite: replace the run in the folder.

    Raises:
        pydantic.ValidationError: an option is out of its range, or the method has none of that name.
        UserError: a setting cannot work, or the folder holds something else.
    """
    if config.lora_target_modules is not None:
        raise UserError(
            "lora_target_modules: training on written rows puts the adapter on all linear layers; leave it None"
        )
    values: dict[str, Any] = {
        **{name: getattr(config, name) for name in _SAME},
        "model": model_source(config),
        "num_epochs": config.num_train_epochs,
        "batch_size": config.per_device_train_batch_size,
        "eval_every": config.eval_steps or None,
        "checkpoint_every": config.save_steps,
        "output_dir": Path(folder),
        "resume": resume,
        "overwrite": overwrite,
    }
    options = options or {}
    twice = sorted(options.keys() & values.keys())
    if twice:
        raise UserError(f"{twice[0]} is a setting of TrainingConfig: give it there", setting=twice[0])
    settings_type, _, function = SUPERVISED[method]
    settings = settings_type(**values, **options)
    with tracking_project(config):
        summary: dict[str, Any] = getattr(post_training, function)(settings, train_rows=list(rows))
    return summary


ALGORITHMS: tuple[str, ...] = (*PRESETS, PPO)
"""Names of the algorithms: GRPO, its presets, and PPO."""


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
    agent: LitAgent[Any] | None = None,
) -> dict[str, Any]:
    """Train on tasks and return the summary of the run. The adapter is written to `adapter/` of the folder, and to
    `epoch_N/` after each epoch.

    Args:
        algorithm: a name in `ALGORITHMS`.
        rows: tasks with a `prompt` and the columns of the reward function.
        reward_fn: see `RewardFunction`.
        eval_rows: tasks to evaluate before and after; may be empty.
        backend: "native", or "trl" for the update by TRL's trainer.
        resume: continue the run in the folder.
        overwrite: replace the run in the folder.
        agent: works on the tasks and returns the rewards; None sends the prompt and scores with `reward_fn`.

    Raises:
        UserError: a setting cannot work, or the folder holds something else.
    """
    check_loggers(config.loggers)
    model = model_source(config)
    check_model(model, "auto")
    if not config.use_lora and adapter_folder(model) is not None:
        raise UserError(f"use_lora=False trains whole weights, but model_name {model!r} is an adapter: merge it first")
    if algorithm == PPO and backend != "native":
        raise UserError("backend='trl' is for GRPO and its variants: PPO takes backend='native'")
    learner = make_algorithm(train_config(algorithm, config, backend=backend), model=model)

    def about() -> dict[str, Any]:
        return {
            "algorithm": algorithm,
            "model": config.model_name,
            "output_dir": str(run_folder.path),
            "adapter": str(run_folder.adapter_path),
            "mean_reward": {
                evaluation.name: sum(evaluation.rewards) / max(1, len(evaluation.rewards))
                for evaluation in learner.evaluations
            },
        }

    run_folder = RunFolder(folder)
    settings = RunSettings(output_dir=Path(folder), loggers=config.loggers, resume=resume, overwrite=overwrite)
    given = {**config.to_dict(), "output_dir": str(folder), "algorithm": algorithm, "backend": backend}
    with tracking_project(config), recorded(run_folder, settings, given, learner, about=about) as run:
        if not run.is_finished:
            trainer = Trainer(
                algorithm=learner,
                n_runners=RunnerSettings().n_runners,
                output_dir=run_folder,
                logger=run.logger,
                resume=run.is_resumed,
            )
            sampling = {} if config.top_p == 1.0 else {"top_p": config.top_p}
            trained = PromptAgent(reward_fn, sampling=sampling) if agent is None else agent
            outside_of_loops(lambda: trainer.fit(trained, list(rows), val_dataset=list(eval_rows)))
    return run_folder.read_summary()


class PromptConfig(TrainConfig):
    """The configuration of `train` for rows with a prompt."""

    defaults: ClassVar[Mapping[str, Any]] = {}


def train_config(algorithm: str, config: TrainingConfig, *, backend: Backend = "native") -> PromptConfig:
    """Return a `TrainingConfig` as a configuration of `train`.

    Raises:
        UserError: there is no such algorithm.
    """
    if algorithm not in ALGORITHMS:
        raise UserError(f"algorithm {algorithm!r} is unknown: choose {', '.join(ALGORITHMS)}")
    targets = config.lora_target_modules
    loop = {
        "total_steps": config.max_steps,
        "total_epochs": config.num_train_epochs if config.max_steps is None else None,
        "tasks_per_step": config.per_device_train_batch_size * config.gradient_accumulation_steps,
        "samples_per_prompt": config.samples_per_prompt,
        "max_new_tokens": config.max_new_tokens,
        "temperature": config.temperature,
        "eval_every": config.eval_steps,
        "checkpoint_every": config.save_steps,
        "seed": config.seed,
    }
    learner = {
        "learning_rate": config.learning_rate,
        "warmup_steps": config.warmup_steps,
        "checkpointing": config.gradient_checkpointing,
    }
    lora = {
        "r": config.lora_r,
        "alpha": config.lora_alpha,
        "dropout": config.lora_dropout if "lora_dropout" in config.model_fields_set else None,
        "target_modules": None if targets is None else tuple(targets),
    }
    groups: dict[str, Any] = {"load": {"dtype": config.dtype}, "loop": loop, "learner": learner, "lora": lora}
    for name, group in groups.items():  # None keeps the default of `train`
        groups[name] = {key: value for key, value in group.items() if value is not None}
    groups["loop"]["eval_size"] = None  # all of them
    return PromptConfig(algorithm=algorithm, backend=backend, full_finetune=not config.use_lora, **groups)
