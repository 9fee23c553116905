"""The actions on data, rewards and models: `load_dataset`, `create_reward`, `evaluate`; and what is registered."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ....datasets import load_examples
from ....errors import UserError
from .. import REWARD_TYPES, STAND_IN, create_reward_function, local_copy, usual_dataset
from .parameters import (
    AllowedPaths,
    DataParameters,
    EvaluateParameters,
    LoadDatasetParameters,
    RewardParameters,
    ToolError,
)

_SHOWN_ROWS = 2
_SHOWN_TEXT = 600
_EXAMPLES = (
    ("right", "Step 1: 6 * 7 = 42\nAnswer: 42"),
    ("wrong", "Step 1: 6 * 7 = 41\nAnswer: 41"),
    ("no answer", "I do not know."),
)
_TRUTH = "42"

Rows = Sequence[Mapping[str, Any]]


class DataActions:
    """Data sets and rewards by name, and what can be done with them.

    Args:
        paths: what may be read.
    """

    def __init__(self, paths: AllowedPaths) -> None:
        self._paths = paths
        self._datasets: dict[str, Rows] = {}
        self._rewards: dict[str, Callable[..., Any]] = {}

    def register_dataset(self, name: str, dataset: Rows) -> None:
        """Let a name stand for rows."""
        if not name.strip() or len(dataset) == 0:
            raise UserError("register_dataset needs a name, and a data set with rows")
        self._datasets[name] = dataset

    def register_reward(self, name: str, reward_fn: Callable[..., Any]) -> None:
        """Let a name stand for a reward function."""
        if not name.strip() or not callable(reward_fn):
            raise UserError("register_reward_function needs a name, and a function")
        self._rewards[name] = reward_fn

    def find(self, parameters: DataParameters, form: str) -> tuple[str, Rows | None]:
        """The data set that the parameters mean: its name, and its rows where it is registered or given.

        Raises:
            ToolError: there is no such data set.
        """
        custom = parameters.custom_dataset
        if custom is not None and not isinstance(custom, str):
            return "custom", list(custom)[: parameters.max_samples]
        if isinstance(custom, str) and custom not in self._datasets:
            raise ToolError(f"custom_dataset={custom!r} is not registered. Registered: {_names(self._datasets)}")
        name = custom or parameters.dataset
        if name is None:
            return (usual_dataset() if form in ("sft", "rl") else STAND_IN), None
        if name in self._datasets:
            return name, list(self._datasets[name])[: parameters.max_samples]
        return local_copy(self._paths.dataset(name)), None

    def reward(self, parameters: RewardParameters) -> Callable[..., Any]:
        """The reward function that the parameters mean.

        Raises:
            ToolError: there is no such function.
        """
        custom = parameters.custom_reward
        if isinstance(custom, str):
            if custom not in self._rewards:
                raise ToolError(f"custom_reward={custom!r} is not registered. Registered: {_names(self._rewards)}")
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

    def load_dataset(self, parameters: LoadDatasetParameters) -> dict[str, Any]:
        """Return the number of rows, their columns and the first rows."""
        name, rows = self.find(parameters, parameters.format)
        found = self.rows(name, rows, parameters.format, parameters)
        return {
            "dataset": name,
            "format": parameters.format,
            "split": parameters.split,
            "dataset_size": len(found),
            "sample_keys": list(found[0]) if found else [],
            "samples": [{name: _cut(value) for name, value in row.items()} for row in found[:_SHOWN_ROWS]],
        }

    def rows(self, name: str, rows: Rows | None, form: Any, parameters: DataParameters) -> Rows:
        """The rows, loaded if they are not there yet.

        Raises:
            DatasetError: they cannot be had.
        """
        if rows is not None:
            return rows
        return load_examples(name, form, split=parameters.split, max_samples=parameters.max_samples)

    def create_reward(self, parameters: RewardParameters) -> dict[str, Any]:
        """Return the rewards of three replies to a task whose right answer is 42."""
        reward_fn = self.reward(parameters)
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

    def evaluate(self, parameters: EvaluateParameters) -> dict[str, Any]:
        """The mean reward and the accuracy of a model."""
        from ....metrics import MetricsLogger
        from .. import evaluate_model

        reward_fn = self.reward(parameters)
        name, rows = self.find(parameters, "rl")
        found = evaluate_model(
            self._paths.model(parameters.model_path or parameters.model_name),
            self.rows(name, rows, "rl", parameters),
            reward_fn,
            max_samples=parameters.max_samples,
            max_new_tokens=parameters.max_new_tokens,
            seed=parameters.seed,
            logger=MetricsLogger(),
        )
        return {"dataset": name, "split": parameters.split, **found}


def _names(registered: Mapping[str, Any]) -> str:
    return ", ".join(registered) or "none"


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]} …"
