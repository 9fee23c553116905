"""Trainers under the names of HelloAgents, and training in one call.

trainer = GRPOTrainerWrapper(config, dataset, reward_fn=create_accuracy_reward())
trainer.train()
trainer.save_model()
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from ...algorithm import Backend
from ...commands import PPO, check_model
from ...environments import Environment, EnvironmentAgent
from ...errors import UserError
from ...gateway import load_tokenizer
from ...plugins import load_part
from ...policy import ADAPTER_CONFIG
from ...rewards import RemoteReward, RewardFunction
from .config import TrainingConfig, model_source
from .datasets import create_rl_dataset, create_sft_dataset
from .rewards import create_accuracy_reward
from .training import reinforce, supervise

# A run writes its files into a subfolder of `output_dir`, named by its method; `save_model()` writes the trained
# adapter (or model) and the tokenizer into `output_dir` itself, or into another folder.


_FINISHED = "summary.json"
_RUN_FILES = (_FINISHED, "run.json", "metrics.jsonl")
"""Files of a run that `save_model` does not copy."""

Rows = Sequence[Mapping[str, Any]]


class TrainerWrapper(ABC):
    """The base of all trainers.

    Args:
        config: the settings; None takes the defaults.
        dataset: the rows to train on.
    """

    method: ClassVar[str] = ""
    """Name of the folder of its runs."""
    result: ClassVar[str] = ""
    """Folder of the result inside that of a run."""

    def __init__(self, config: TrainingConfig | None = None, dataset: Rows | None = None) -> None:
        self.config = config or TrainingConfig()
        self.dataset = dataset
        self.summary: dict[str, Any] | None = None
        """Summary that `train` has returned."""

    @property
    def run_folder(self) -> Path:
        """The folder that the run writes."""
        return Path(self.config.output_dir) / self.method

    def setup_model(self) -> None:
        """Check early that the model exists; the embedded one is downloaded. `train` loads it.

        Raises:
            UserError: there is no such model.
        """
        check_model(model_source(self.config), "auto")

    def train(self, *, resume: bool = False, overwrite: bool = False) -> dict[str, Any]:
        """Train and return the summary of the run.

        Args:
            resume: continue the earlier run.
            overwrite: replace the earlier run.

        Raises:
            UserError: there are no rows, a setting cannot work, or there is an earlier run.
        """
        rows = [] if self.dataset is None else list(self.dataset)
        if not rows:
            raise UserError(f"{type(self).__name__} has no dataset: give it rows to train on")
        self.summary = self._train(rows, resume, overwrite)
        return self.summary

    def save_model(self, output_dir: str | Path | None = None) -> Path:
        """Write the trained adapter or model and its tokenizer, and return the folder.

        Args:
            output_dir: None takes the configuration's.

        Raises:
            UserError: nothing was trained yet, or the run is not finished.
        """
        if not (self.run_folder / _FINISHED).is_file():
            raise UserError(f"{type(self).__name__} has trained nothing yet: call train() before save_model()")
        target = Path(self.config.output_dir if output_dir is None else output_dir)
        target.mkdir(parents=True, exist_ok=True)
        results = self.run_folder / self.result
        files = [file for file in results.iterdir() if file.is_file() and file.name not in _RUN_FILES]
        for file in sorted(files, key=lambda file: file.name == ADAPTER_CONFIG):  # which makes the folder an adapter's
            shutil.copy2(file, target / file.name)
        return target

    @abstractmethod
    def _train(self, rows: Rows, resume: bool, overwrite: bool) -> dict[str, Any]: ...


class SupervisedTrainerWrapper(TrainerWrapper):
    """The base of the trainers that learn from written rows.

    Args:
        config: the settings; None takes the defaults.
        dataset: the rows to train on.
        options: settings of the method that `TrainingConfig` does not have, as `beta`.
    """

    def __init__(self, config: TrainingConfig | None = None, dataset: Rows | None = None, **options: Any) -> None:
        super().__init__(config, dataset)
        self.options = options

    def _train(self, rows: Rows, resume: bool, overwrite: bool) -> dict[str, Any]:
        return supervise(
            self.method, self.config, rows, self.run_folder, options=self.options, resume=resume, overwrite=overwrite
        )


class SFTTrainerWrapper(SupervisedTrainerWrapper):
    """Supervised fine-tuning on rows with `messages`."""

    method = "sft"


class DPOTrainerWrapper(SupervisedTrainerWrapper):
    """Direct preference optimization on rows with `prompt`, `chosen` and `rejected`."""

    method = "dpo"


class KTOTrainerWrapper(SupervisedTrainerWrapper):
    """Kahneman-Tversky optimization on rows with `prompt`, `completion` and `label` (true for a good completion)."""

    method = "kto"


class ORPOTrainerWrapper(SupervisedTrainerWrapper):
    """Odds ratio preference optimization on rows with `prompt`, `chosen` and `rejected`."""

    method = "orpo"


class RewardTrainerWrapper(SupervisedTrainerWrapper):
    """A reward model from rows with `prompt`, `chosen` and `rejected`."""

    method = "reward"


class GRPOTrainerWrapper(TrainerWrapper):
    """Group relative policy optimization of the answers to rows with a `prompt`.

    Args:
        config: the settings; None takes the defaults.
        dataset: the rows to train on.
        reward_fn: called as `reward_fn(completions=[…], ground_truth=[…], **columns)`; None takes
            `create_accuracy_reward()`.
        eval_dataset: rows to measure on, before and after.
        algorithm: "grpo" or one of its variants; see `training.ALGORITHMS`.
        backend: "native", or "trl" for TRL's trainer.
        environment_factory: makes an environment of TRL's, or several by name: see `integrations.trl.TRLEnvironment`.
            Its rewards may do without a `reward_fn`, and with `max_steps` set it may do without a data set.
        tools: functions that the model may call, beside those of the environment.
        reward_weights: a factor for each of several reward functions (with an environment).

    Raises:
        UserError: these do not go together, or something in them cannot work.
    """

    method = "grpo"
    result = "adapter"

    def __init__(
        self,
        config: TrainingConfig | None = None,
        dataset: Rows | None = None,
        reward_fn: Any = None,
        *,
        eval_dataset: Rows | None = None,
        algorithm: str = "grpo",
        backend: Backend = "native",
        environment_factory: Any = None,
        tools: Sequence[Callable[..., Any]] = (),
        reward_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__(config, dataset)
        self.environment: Environment | None = None
        self.reward_weights = reward_weights
        if environment_factory is not None or tools:
            self.environment = self._environment(environment_factory, reward_fn, tools)
        self.reward_fn = create_accuracy_reward() if reward_fn is None else reward_fn
        self.eval_dataset = eval_dataset
        self.algorithm = algorithm
        self.backend: Backend = backend

    def save_model(self, output_dir: str | Path | None = None) -> Path:
        """As `TrainerWrapper.save_model`."""
        target = super().save_model(output_dir)
        load_tokenizer(model_source(self.config)).save_pretrained(target)
        return target

    def _train(self, rows: Rows, resume: bool, overwrite: bool) -> dict[str, Any]:
        return reinforce(
            self.algorithm,
            self.config,
            rows,
            self.reward_fn,
            self.run_folder,
            eval_rows=self.eval_dataset or (),
            backend=self.backend,
            resume=resume,
            overwrite=overwrite,
            agent=None if self.environment is None else EnvironmentAgent(self.environment),
        )

    def _environment(self, factory: Any, reward_fn: Any, tools: Sequence[Callable[..., Any]]) -> Environment:
        if self.dataset is None and self.config.max_steps is None:
            raise UserError("an environment without a dataset needs to know how long to train: set max_steps")
        trl = load_part("trl", setting="environment_factory")
        environment: Environment = trl.TRLEnvironment(
            trl.WithoutEnvironment if factory is None else factory,
            () if reward_fn is None and factory is not None else reward_fn or create_accuracy_reward(),
            reward_weights=self.reward_weights,
            tools=tools,
            train_dataset=self.dataset,
        )
        if self.dataset is None:
            batch = self.config.per_device_train_batch_size * self.config.gradient_accumulation_steps
            self.dataset = environment.tasks("train", batch)
        return environment


class PPOTrainerWrapper(GRPOTrainerWrapper):
    """Proximal policy optimization, with a critic on the same weights.

    Args:
        config: the settings; None takes the defaults.
        dataset: the rows to train on.
        reward_model: a reward function, the folder of a reward model, or the URL of a score server; None takes
            `create_accuracy_reward()`.
        eval_dataset: rows to measure on, before and after.
    """

    method = "ppo"

    def __init__(
        self,
        config: TrainingConfig | None = None,
        dataset: Rows | None = None,
        reward_model: RewardFunction | str | Path | None = None,
        *,
        eval_dataset: Rows | None = None,
    ) -> None:
        super().__init__(config, dataset, eval_dataset=eval_dataset, algorithm=PPO)
        self.reward_model: RewardFunction | str | Path = self.reward_fn if reward_model is None else reward_model

    def _train(self, rows: Rows, resume: bool, overwrite: bool) -> dict[str, Any]:
        with _scoring(self.reward_model) as self.reward_fn:
            return super()._train(rows, resume, overwrite)


@contextmanager
def _scoring(reward: RewardFunction | str | Path) -> Iterator[RewardFunction]:
    """Yield the reward function that `reward` means: itself, the client of the service at a URL, or that of a service
    on the reward model in a folder, which answers many callers in batches and ends with the block.

    Raises:
        UserError: the folder holds no reward model.
        ValueError: a text that is neither a URL nor a folder.
    """
    if not isinstance(reward, str | Path):
        yield reward
        return
    if str(reward).startswith(("http://", "https://")):
        yield RemoteReward(str(reward))
        return
    service = load_part("reward_service")
    with service.ScoreServer(service.load_scorer(str(reward))) as server:
        yield RemoteReward(server.url)


def train_with_sft(
    model_name: str = "embedded",
    dataset: Rows | None = None,
    output_dir: str = "./output/sft",
    *,
    max_samples: int | None = 1000,
    **settings: Any,
) -> dict[str, Any]:
    """Fine-tune a model, save it in `output_dir`, and return the summary.

    Args:
        model_name: as in `TrainingConfig`.
        dataset: rows with `messages`; None takes `create_sft_dataset(max_samples)`.
        output_dir: where the result goes.
        max_samples: rows of the data set that is taken without a `dataset`.
        settings: further fields of `TrainingConfig`.

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
        UserError: a setting cannot work, or there is an earlier run in `output_dir`.
    """
    config = TrainingConfig(model_name=model_name, output_dir=output_dir, **settings)
    trainer = SFTTrainerWrapper(config, create_sft_dataset(max_samples) if dataset is None else dataset)
    summary = trainer.train()
    trainer.save_model()
    return summary


def train_with_grpo(
    model_name: str = "embedded",
    dataset: Rows | None = None,
    reward_fn: RewardFunction | None = None,
    output_dir: str = "./output/grpo",
    *,
    max_samples: int | None = 500,
    **settings: Any,
) -> dict[str, Any]:
    """Reinforce a model, save it in `output_dir`, and return the summary.

    Args:
        model_name: as in `TrainingConfig`.
        dataset: rows with a `prompt`; None takes `create_rl_dataset(max_samples)`.
        reward_fn: see `GRPOTrainerWrapper`.
        output_dir: where the result goes.
        max_samples: rows of the data set that is taken without a `dataset`.
        settings: further fields of `TrainingConfig`.

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
        UserError: a setting cannot work, or there is an earlier run in `output_dir`.
    """
    config = TrainingConfig(model_name=model_name, output_dir=output_dir, **settings)
    trainer = GRPOTrainerWrapper(config, create_rl_dataset(max_samples) if dataset is None else dataset, reward_fn)
    summary = trainer.train()
    trainer.save_model()
    return summary
