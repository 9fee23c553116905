"""Look up a recipe and its tasks by the names that a job is given. Their numbers are in `defaults.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from ..datasets import Split, TaskRows, load_task_dataset, split_style
from ..datasets.episodes import EPISODES, is_episodes, load_episodes
from ..datasets.sql import MedicalQuestions
from ..errors import UserError
from ..litagent import LitAgent
from .harness import is_task_folder, load_task_folder
from .own_object import own_object
from .recipe import Recipe

ENV: Final = "env:"
"""Before the name of an environment, where an agent or a data set is named: its agent, and its tasks."""


def load_recipe(name: str, dataset: str = "") -> Recipe:
    """Return the recipe `math` or `sql`, that of a family of `EPISODES`, that of a plugin, that of an environment
    (`env:NAME`, by a name as `load_environment` takes it), or that of a user's `module:ClassName` of a LitAgent.

    `dataset` is where the tasks come from: generated arithmetic takes fewer calls than other problems, and
    `reasoning_gym` has a generator behind its name.

    A user's agent is scored by what its rollouts return, by what they emit, and by the hooks in its attribute `hooks`.

    Raises:
        UserError: there is no such agent.
    """
    if name == "math":
        from .math import GENERATED_TURNS, MAX_TURNS, math_recipe

        generated = split_style(dataset)[0].partition(":")[0] == "arithmetic"
        return math_recipe(max_turns=GENERATED_TURNS if generated else MAX_TURNS)
    if name == "sql":
        from .sql import sql_recipe

        return sql_recipe()
    if name in EPISODES or name.startswith(ENV):
        from .environments import environment_recipe

        if name.startswith(ENV):
            return environment_recipe(name.removeprefix(ENV))
        return environment_recipe(dataset if is_episodes(dataset) else name)
    known = f"'math', 'sql', {', '.join(map(repr, EPISODES))}, or module:ClassName of a LitAgent"
    agent = own_object(name, "agents", setting="agent", known=known)
    if not isinstance(agent, LitAgent):
        raise UserError(f"{name!r} is a {type(agent).__name__}, not a LitAgent", setting="agent")
    return Recipe(agent, list(getattr(agent, "hooks", ())))


def load_tasks(
    dataset: str, split: Split | Literal["transfer", "all"], size: int | None, seed: int, difficulty: Sequence[int]
) -> TaskRows:
    """Return the tasks of a split; `difficulty` holds the levels that generated data sets draw from.

    Raises:
        UserError: no such data set, or its extra is not installed.
    """
    if dataset.startswith(ENV):
        from .environments import environment_tasks

        return environment_tasks(dataset.removeprefix(ENV), split, size, seed)
    name, as_text = split_style(dataset)
    if is_episodes(name):
        return load_episodes(name, split, size, seed, tuple(difficulty))
    if is_task_folder(Path(dataset)):
        return load_task_folder(Path(dataset), split, size, seed)
    if name in ("arithmetic", "medical") and split != "all":
        if not difficulty or not set(difficulty) <= {1, 2, 3, 4}:
            raise UserError(f"{list(difficulty)}: the levels are 1, 2, 3 and 4", setting="difficulty")
        if name == "medical" and split != "transfer":
            return MedicalQuestions(split, 2000 if size is None else size, seed, difficulty=tuple(difficulty))
        levels = ",".join(map(str, difficulty))
        dataset, size = f"{'text:' if as_text else ''}{name}:{levels}", 10_000 if size is None else size
    return load_task_dataset(dataset, split, size, seed)
