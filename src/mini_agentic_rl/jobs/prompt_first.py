"""First the prompt, then the weights: the search that `train --optimize-prompt` begins with.

The search runs on validation tasks, never on those that measure the training, and with the model as it is. Its folder
stands in the folder of the run, so that a run which was interrupted goes on with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from openai import AsyncOpenAI

from ..algorithm import GEPA, WarmStart
from ..datasets import TaskRows
from ..errors import UserError
from ..gateway import GatewayLimits, ServedPolicy
from ..policy import LoraSettings
from ..recipes import Recipe, load_tasks
from ..recipes.math import SYSTEM_PROMPT
from ..store import InMemoryLightningStore
from ..trainer import Trainer
from ..types import NamedResources, PromptTemplate
from .config import TrainConfig

PROMPT_RESOURCE: Final = "prompt"
"""Name under which an agent finds the prompt."""
_FOLDER: Final = "prompt_search"


def prompt_file(run: Path) -> Path:
    """Return where the prompt is that the search of a run has found, once it has ended."""
    return run / _FOLDER / "prompt" / "best_prompt.txt"


def prompt_resources(text: str) -> NamedResources:
    """Return a prompt as the resource that an agent looks for."""
    return {PROMPT_RESOURCE: PromptTemplate(template=text, engine="f-string")}


class PromptFirst:
    """The search for a prompt of a run.

    Args:
        config: of the run.
        recipe: the agent and its reward.

    Raises:
        UserError: there is no prompt to begin with, or the file with it cannot be read.
    """

    def __init__(self, config: TrainConfig, recipe: Recipe) -> None:
        self._config = config
        self._recipe = recipe
        self._first = PromptTemplate(template=_first_prompt(config), engine="f-string")
        self._folder = config.run.output_dir / _FOLDER
        self._found = prompt_file(config.run.output_dir)

    def optimised(self, train: TaskRows, *, resumed: bool) -> PromptTemplate:
        """Return the best prompt; where the search of a resumed run has ended, the one that it found.

        Raises:
            UserError: the endpoint of the model that reflects refuses every call.
        """
        config = self._config
        if resumed and self._found.is_file():
            return self._first.model_copy(update={"template": self._found.read_text(encoding="utf-8")})
        tasks, loop = config.tasks, config.loop
        validation = load_tasks(tasks.dataset, "val", loop.eval_size, loop.seed, tasks.difficulty)
        client = AsyncOpenAI(base_url=config.reflection_base_url, api_key=os.environ.get("OPENAI_API_KEY") or "none")
        algorithm = GEPA[Any](client, settings=config.gepa.model_copy(update={"seed": loop.seed}))
        store = InMemoryLightningStore()
        served = ServedPolicy.load(**config.load.model_dump(), engine=config.engine, lora=LoraSettings())
        try:
            server = served.serve(
                store=store,
                limits=GatewayLimits(**config.limits.model_dump()),
                tool_format=loop.tool_format,
                thinking=loop.thinking,
            )
            sampling = {"temperature": loop.temperature, "max_tokens": loop.max_new_tokens}
            trainer = Trainer(
                algorithm=algorithm,
                hooks=self._recipe.hooks,
                n_runners=config.n_runners,
                store=store,
                output_dir=self._folder,
                resume=resumed,
                initial_resources={"llm": server.as_resource(sampling), PROMPT_RESOURCE: self._first},
            )
            trainer.fit(self._recipe.agent, train, val_dataset=validation)
        finally:
            served.close()
        return algorithm.get_best_prompt()


def with_prompt(start: WarmStart, prompt: PromptTemplate) -> WarmStart:
    """Return an imitation whose conversations begin with the prompt, as those of the agent will."""

    def demonstration(task: Mapping[str, Any]) -> list[dict[str, Any]]:
        messages = start.demonstration(task)
        if not messages or messages[0].get("role") != "system":
            return list(messages)
        return [{**messages[0], "content": prompt.format()}, *messages[1:]]

    return replace(start, demonstration=demonstration)


def _first_prompt(config: TrainConfig) -> str:
    if config.prompt_file is not None:
        try:
            return config.prompt_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{config.prompt_file} cannot be read: {error}", setting="prompt_file") from error
    if config.tasks.agent == "math" and not config.tasks.dataset.startswith("text:"):
        return SYSTEM_PROMPT
    if config.tasks.agent == "sql":
        raise UserError("the SQL agent has no prompt that could be optimised", setting="optimize_prompt")
    raise UserError(
        "`optimize_prompt` needs the prompt to begin with, which the agent finds as the resource 'prompt'",
        setting="prompt_file",
    )
