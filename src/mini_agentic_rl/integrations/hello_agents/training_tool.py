"""`RLTrainingTool`: an agent trains a model, looks at data, tries a reward and measures, by one call with one answer.

    RLTrainingTool().run({"action": "train", "algorithm": "sft", "model_name": "embedded", "max_samples": 100})

Answers are JSON text with `success` and `status`; what went wrong comes in `message`, never as an exception. `train`
returns when the training has ended.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from ...datasets import divide_examples, load_examples
from ...errors import UserError
from . import REWARD_TYPES, STAND_IN, TrainingConfig, create_reward_function, local_copy, usual_dataset
from .tool_parameters import (
    PARAMETERS,
    AllowedPaths,
    DataParameters,
    EvaluateParameters,
    LoadDatasetParameters,
    RewardParameters,
    ToolError,
    ToolParameter,
    TrainParameters,
    describe,
    json_schema,
    message_of,
    read_action,
    read_parameters,
)

logger = logging.getLogger(__name__)

REINFORCEMENT_RATE: Final = 5e-4
"""Learning rate of reinforcement learning, unless another is given."""
_EVAL_FRACTION: Final = 0.1

_SHOWN_ROWS = 2
_SHOWN_TEXT = 600
_EXAMPLES = (
    ("right", "Step 1: 6 * 7 = 42\nAnswer: 42"),
    ("wrong", "Step 1: 6 * 7 = 41\nAnswer: 41"),
    ("no answer", "I do not know."),
)
_TRUTH = "42"

Rows = Sequence[Mapping[str, Any]]


class RLTrainingTool:
    """Trains models for an agent.

    It is called with a mapping or with the JSON text of one. As an OpenAI tool: offer `openai_tool`, answer a call by
    `run(call.function.arguments)`.

    What an agent can do with it is bounded: output folders are inside `root`, files are read there or in
    `data_folders`, local models are loaded from there or from `model_folders`, no name of a data set runs code, every
    number has a bound, and at most `max_trainings` run at once.

    Args:
        root: folder for all output; None takes the working directory.
        data_folders: further folders whose files may be read as data sets.
        model_folders: further folders whose models may be loaded.
        max_trainings: trainings at the same time, by calls from several threads.

    Raises:
        UserError: `max_trainings` is below 1.
    """

    name: ClassVar[str] = "rl_training"
    description: ClassVar[str] = (
        "Train language models: supervised fine-tuning, preference training, reward models, and reinforcement learning "
        "(GRPO and its variants, PPO). Also: look at a data set, try a reward, measure a model."
    )

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        data_folders: Sequence[str | Path] = (),
        model_folders: Sequence[str | Path] = (),
        max_trainings: int = 1,
    ) -> None:
        if max_trainings < 1:
            raise UserError(f"max_trainings must be 1 or more, not {max_trainings}")
        self._paths = AllowedPaths(Path.cwd() if root is None else root, data_folders, model_folders)
        self._max_trainings = max_trainings
        self._free = threading.BoundedSemaphore(max_trainings)
        self._datasets: dict[str, Rows] = {}
        self._rewards: dict[str, Callable[..., Any]] = {}
        self._actions: dict[str, Callable[[Any], dict[str, Any]]] = {
            "train": self._train,
            "load_dataset": self._load_dataset,
            "create_reward": self._create_reward,
            "evaluate": self._evaluate,
        }

    def run(self, parameters: Mapping[str, Any] | str | None = None) -> str:
        """Do what `action` says (`train` where there is none) and answer in JSON."""
        action = "train"
        try:
            if isinstance(parameters, str):
                try:
                    parameters = json.loads(parameters)
                except ValueError as error:
                    raise ToolError(f"the parameters are not valid JSON ({error}); give a JSON object") from error
            given = {} if parameters is None else parameters
            if not isinstance(given, Mapping):
                raise ToolError(f"the parameters are a {type(given).__name__}; give a JSON object")
            action = read_action(given)
            result = self._actions[action](read_parameters(PARAMETERS[action], action, given))
            answer = {"success": True, "status": "success", "action": action, **result}
        except Exception as error:  # an agent can act on an answer, and not on a traceback
            if not isinstance(error, UserError | ImportError):
                logger.exception("%s failed", action)
            answer = {"success": False, "status": "error", "action": action, "message": message_of(error)}
        return json.dumps(answer, ensure_ascii=False, indent=2, default=str)

    def __call__(self, **parameters: Any) -> str:
        """Call `run` with the parameters by name."""
        return self.run(parameters)

    def get_parameters(self) -> list[ToolParameter]:
        """Return every parameter with its type, description and default."""
        return describe()

    @property
    def openai_tool(self) -> dict[str, Any]:
        """The tool as an OpenAI function."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": json_schema()},
        }

    def register_dataset(self, name: str, dataset: Rows) -> None:
        """Let `dataset` and `custom_dataset` name these rows.

        Raises:
            UserError: the name is empty, or there are no rows.
        """
        if not name.strip() or len(dataset) == 0:
            raise UserError("register_dataset needs a name, and a data set with rows")
        self._datasets[name] = dataset

    def register_reward_function(self, name: str, reward_fn: Callable[..., Any]) -> None:
        """Let `custom_reward` name this function.

        Raises:
            UserError: the name is empty, or it cannot be called.
        """
        if not name.strip() or not callable(reward_fn):
            raise UserError("register_reward_function needs a name, and a function")
        self._rewards[name] = reward_fn

    def _train(self, parameters: TrainParameters) -> dict[str, Any]:
        """Train to the end, and return the summary."""
        from . import SUPERVISED, reinforce, supervise  # which import torch

        algorithm = parameters.algorithm
        folder = self._paths.output(parameters.output_dir)
        model = self._paths.model(parameters.model_name)
        method = SUPERVISED.get(algorithm)
        reward_fn = self._reward(parameters) if method is None else None
        if not self._free.acquire(blocking=False):
            raise ToolError(f"at most {self._max_trainings} trainings run at once (max_trainings): wait until one ends")
        try:
            name, rows = self._rows(parameters, "rl" if method is None else method[1], parameters.seed)
            if not rows:
                raise UserError("dataset has no rows to train on")
            rate = REINFORCEMENT_RATE if method is None else method[0].settings()["learning_rate"].default
            config = _config(parameters, model, folder, float(rate))
            again: dict[str, Any] = {"resume": parameters.resume, "overwrite": parameters.overwrite}
            if reward_fn is None:
                summary = supervise(algorithm, config, rows, folder, **again)
            else:
                train: Rows = rows
                held_out: Rows = ()
                if parameters.eval_samples and len(rows) > 1:
                    train, held_out = divide_examples(list(rows), _EVAL_FRACTION, parameters.seed)
                measured = held_out[: parameters.eval_samples]
                summary = reinforce(algorithm, config, train, reward_fn, folder, eval_rows=measured, **again)
        finally:
            self._free.release()
        return {
            "algorithm": algorithm,
            "model": parameters.model_name,
            "output_dir": str(folder),
            "dataset": name,
            "dataset_size": len(rows),
            "num_epochs": parameters.num_epochs,
            "summary": summary,
        }

    def _load_dataset(self, parameters: LoadDatasetParameters) -> dict[str, Any]:
        """Return the number of rows, their columns and the first rows."""
        name, rows = self._rows(parameters, parameters.format)
        return {
            "dataset": name,
            "format": parameters.format,
            "split": parameters.split,
            "dataset_size": len(rows),
            "sample_keys": list(rows[0]) if rows else [],
            "samples": [{name: _cut(value) for name, value in row.items()} for row in rows[:_SHOWN_ROWS]],
        }

    def _create_reward(self, parameters: RewardParameters) -> dict[str, Any]:
        """Return the rewards of three replies to a task whose right answer is 42."""
        reward_fn = self._reward(parameters)
        truths = [_TRUTH] * len(_EXAMPLES)
        rewards = reward_fn(completions=[text for _, text in _EXAMPLES], ground_truth=truths)
        custom = parameters.custom_reward is not None
        values = parameters.model_dump(exclude={"custom_reward", "reward_type"})
        return {
            "reward_type": "custom" if custom else parameters.reward_type,
            "description": "a function of the user's" if custom else REWARD_TYPES[parameters.reward_type],
            "parameters": {} if custom else values,
            "examples": [
                {"reply": text, "ground_truth": _TRUTH, "reward": reward}
                for (_, text), reward in zip(_EXAMPLES, rewards, strict=True)
            ],
        }

    def _evaluate(self, parameters: EvaluateParameters) -> dict[str, Any]:
        """Return the mean reward and the accuracy of a model."""
        from ...metrics import MetricsLogger
        from . import evaluate_model

        reward_fn = self._reward(parameters)
        model = self._paths.model(parameters.model_path or parameters.model_name)
        name, rows = self._rows(parameters, "rl")
        scores = evaluate_model(
            model,
            rows,
            reward_fn,
            max_samples=parameters.max_samples,
            max_new_tokens=parameters.max_new_tokens,
            seed=parameters.seed,
            logger=MetricsLogger(),
        )
        return {"dataset": name, "split": parameters.split, **scores}

    def _rows(self, parameters: DataParameters, form: Any, seed: int = 0) -> tuple[str, Rows]:
        """Return the name of the data set and its rows: given, registered or loaded."""
        custom, most = parameters.custom_dataset, parameters.max_samples
        if custom is not None and not isinstance(custom, str):
            return "custom", list(custom)[:most]
        if custom is not None and custom not in self._datasets:
            known = ", ".join(self._datasets) or "none"
            raise ToolError(f"custom_dataset={custom!r} is not registered. Registered: {known}")
        name = custom or parameters.dataset
        if name in self._datasets:
            return name, list(self._datasets[name])[:most]
        if name is not None:
            name = local_copy(self._paths.dataset(name))
        else:
            name = usual_dataset() if form in ("sft", "rl") else STAND_IN
        return name, load_examples(name, form, split=parameters.split, max_samples=most, seed=seed)

    def _reward(self, parameters: RewardParameters) -> Callable[..., Any]:
        """Return the reward function of a call."""
        custom = parameters.custom_reward
        if isinstance(custom, str):
            if custom not in self._rewards:
                known = ", ".join(self._rewards) or "none"
                raise ToolError(f"custom_reward={custom!r} is not registered. Registered: {known}")
            return self._rewards[custom]
        if custom is not None:
            if not callable(custom):
                raise ToolError("custom_reward must be a function, or the name of a registered one")
            return cast(Callable[..., Any], custom)
        return create_reward_function(
            parameters.reward_type,
            tolerance=parameters.tolerance,
            max_length=parameters.max_length,
            penalty_weight=parameters.penalty_weight,
            step_bonus=parameters.step_bonus,
        )


def _config(parameters: TrainParameters, model: str, folder: Path, learning_rate: float) -> TrainingConfig:
    samples = parameters.samples_per_prompt if "samples_per_prompt" in parameters.model_fields_set else None
    values: dict[str, Any] = {
        **parameters.model_dump(include=set(TrainingConfig.model_fields)),  # settings of the same name
        "model_name": model,
        "output_dir": str(folder),
        "num_train_epochs": parameters.num_epochs,
        "per_device_train_batch_size": parameters.batch_size,
        "learning_rate": parameters.learning_rate or learning_rate,
        "logging_steps": 1,
        "lora_dropout": 0.0,
        "samples_per_prompt": samples,
    }
    return TrainingConfig(**values)


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]} …"
