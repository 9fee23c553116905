"""Run a HelloAgents configuration through our jobs: supervised fine-tuning and reinforcement learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ... import post_training
from ...algorithm import PRESETS, Backend, ReinforcementLearning
from ...commands import PPO, TrainConfig, check_model
from ...commands import make_algorithm as make_from_config
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


SUPERVISED_SETTINGS: Mapping[str, type[PostTrainingSettings]] = {
    "sft": SFTSettings,
    "dpo": DPOSettings,
    "kto": KTOSettings,
    "orpo": ORPOSettings,
    "reward": RewardModelSettings,
}
"""The settings of each method by its name."""

FORMATS: Mapping[str, str] = {
    "sft": "sft",
    "dpo": "preference",
    "kto": "unpaired",
    "orpo": "preference",
    "reward": "preference",
}
"""The form of rows that each method learns from."""

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
        method: a name in `SUPERVISED_SETTINGS`.
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
    settings: Any = SUPERVISED_SETTINGS[method](**values, **options)
    train: Mapping[str, Callable[..., dict[str, Any]]] = {
        "sft": post_training.train_sft,
        "dpo": post_training.train_dpo,
        "kto": post_training.train_kto,
        "orpo": post_training.train_orpo,
        "reward": post_training.train_reward_model,
    }
    with tracking_project(config):
        return train[method](settings, train_rows=list(rows))


ALGORITHMS: tuple[str, ...] = (*PRESETS, PPO)
"""Names of the algorithms: GRPO, its presets, and PPO."""

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
"""Fields of `TrainingConfig` and their paths in `PromptConfig`; None keeps the default there."""


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
    learner = make_algorithm(algorithm, config, model, backend=backend)

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
            if agent is None:
                agent = PromptAgent(reward_fn, sampling={} if config.top_p == 1.0 else {"top_p": config.top_p})
            trained_agent = agent
            outside_of_loops(lambda: trainer.fit(trained_agent, list(rows), val_dataset=list(eval_rows)))
    return run_folder.read_summary()


class PromptConfig(TrainConfig):
    """The configuration of `train` for rows with a prompt."""

    defaults: ClassVar[Mapping[str, Any]] = {"learner.schedule": "linear"}
    """The default schedule of transformers' trainers."""


def train_config(algorithm: str, config: TrainingConfig, *, backend: Backend = "native") -> PromptConfig:
    """Return a `TrainingConfig` as a configuration of `train`.

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
    if "lora_dropout" in config.model_fields_set:
        given["lora.dropout"] = config.lora_dropout
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
