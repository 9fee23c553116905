"""`RLTrainingTool`: an agent trains a model, looks at data, tries a reward and measures, by one call with one answer.

    RLTrainingTool().run({"action": "train", "algorithm": "sft", "model_name": "embedded", "max_samples": 100})

Answers are JSON text with `success` and `status`; what went wrong comes in `message`, never as an exception. `train`
returns when the training has ended.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ....errors import UserError
from .actions import Actions
from .parameters import (
    PARAMETERS,
    AllowedPaths,
    ToolError,
    ToolParameter,
    describe,
    json_schema,
    message_of,
    read_action,
    read_parameters,
)

logger = logging.getLogger(__name__)


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
        paths = AllowedPaths(Path.cwd() if root is None else root, data_folders, model_folders)
        self._actions = Actions(paths, max_trainings)

    def run(self, parameters: Mapping[str, Any] | str | None = None) -> str:
        """Do what `action` says (`train` where there is none) and answer in JSON."""
        action = "train"
        try:
            given = _read(parameters)
            action = read_action(given)
            act: Callable[[Any], dict[str, Any]] = getattr(self._actions, action)
            result = act(read_parameters(PARAMETERS[action], action, given))
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

    def register_dataset(self, name: str, dataset: Sequence[Mapping[str, Any]]) -> None:
        """Let `dataset` and `custom_dataset` name these rows.

        Raises:
            UserError: the name is empty, or there are no rows.
        """
        self._actions.register_dataset(name, dataset)

    def register_reward_function(self, name: str, reward_fn: Callable[..., Any]) -> None:
        """Let `custom_reward` name this function.

        Raises:
            UserError: the name is empty, or it cannot be called.
        """
        self._actions.register_reward(name, reward_fn)


def _read(parameters: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    if isinstance(parameters, str):
        try:
            parameters = json.loads(parameters)
        except ValueError as error:
            raise ToolError(f"the parameters are not valid JSON ({error}); give a JSON object") from error
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping):
        raise ToolError(f"the parameters are a {type(parameters).__name__}; give a JSON object")
    return parameters
