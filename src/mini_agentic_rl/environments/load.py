"""Agents, environments and tasks by name: from the recipes of this package, plugins, or modules of the user."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ..datasets import (
    DEFAULT_SIZE,
    SHORT_IMITATION,
    TaskFamily,
    TaskRows,
    agent_names,
    family_type,
    find_family,
    in_text,
    load_task_dataset,
    named_options,
    split_style,
)
from ..errors import UserError
from ..litagent import LitAgent
from ..plugins import load_part, object_named
from .environment import Environment, EnvironmentAgent, Recipe

ENV: Final = "env:"
"""Prefix of an environment's name where an agent or a data set is named."""
_INSTRUCTIONS: Final = ("*/instruction.md", "*/*/instruction.md")
"""Files in a folder of harness tasks."""
_FOREIGN: Final = {"verifiers": "NAME", "openenv": "http://host:port", "gymnasium": "ID or module:Class"}
"""Packages whose environments are named `package:NAME`, and the form of the name."""


def load_recipe(name: str, dataset: str = "") -> Recipe:
    """Return the recipe of an agent: of a task family such as `math`, of a plugin, of an environment (`env:NAME`, by a
    name as in `load_environment`), or of a user's `module:ClassName` of a LitAgent.

    The agent of a family may depend on the tasks in `dataset`, as on the generator of `reasoning_gym`. A user's agent
    is scored by the rewards that its rollouts return or emit, and by the hooks in its attribute `hooks`.

    Raises:
        UserError: there is no such agent.
        MissingPackageError: the package that it needs is not installed.
    """
    if name.startswith(ENV):
        environment = name.removeprefix(ENV)
        family = _environment_family(environment)
        recipe: Recipe = Recipe(EnvironmentAgent(load_environment(environment))) if family is None else family.recipe()
        return recipe
    tasks = split_style(dataset)[0]
    tasks_family = family_type(tasks)
    trains_tasks = tasks_family is not None and tasks_family.trained_agent() == name
    family = find_family(tasks if trains_tasks else name)
    if family is not None:
        recipe = family.recipe()
        return recipe
    known = f"{', '.join(map(repr, agent_names()))}, or module:ClassName of a LitAgent"
    agent = object_named(name, "agents", setting="agent", known=known)
    if not isinstance(agent, LitAgent):
        raise UserError(f"{name!r} is a {type(agent).__name__}, not a LitAgent", setting="agent")
    return Recipe(agent, list(getattr(agent, "hooks", ())))


def load_tasks(dataset: str, split: str, size: int | None, seed: int, difficulty: Sequence[int]) -> TaskRows:
    """Return the tasks of a split; `difficulty` is the levels that generated data sets draw from.

    Raises:
        UserError: no such data set, or its extra is not installed; or an environment has no tasks in this split.
    """
    if dataset.startswith(ENV):
        return _environment_tasks(dataset.removeprefix(ENV), split, size, seed)
    name, as_text = split_style(dataset)
    family = find_family(name)
    if family is not None:
        count = family.training_size if size is None else size
        rows = family.tasks(split, count, seed, family.chosen_levels or tuple(difficulty))
        return in_text(rows) if as_text else rows
    path = Path(dataset)
    if path.is_dir() and any(next(path.glob(pattern), None) for pattern in _INSTRUCTIONS):
        harness = load_part("harness", setting="dataset")
        if harness.is_task_folder(path):
            tasks: TaskRows = harness.load_task_folder(path, split, size, seed)
            return tasks
    return load_task_dataset(dataset, split, size, seed)


def training_defaults(name: str, dataset: str, *, mixes: bool = False, whole_steps: bool = False) -> Mapping[str, Any]:
    """Return the default settings of a training, by path, such as `lora.r`.

    Args:
        name: name of the agent.
        dataset: name of its tasks.
        mixes: True if steps of reinforcement learning may also imitate.
        whole_steps: True if sampling waits for learning, so that failed tasks of a step can be tried again.
    """
    family = family_type(name) if name else None
    if name and family is None:
        family = family_type(dataset)
        if family is not None and family.is_open:  # other agents may take its tasks too
            family = None
    if family is None:
        return SHORT_IMITATION
    return family.training_defaults(dataset, mixes=mixes, whole_steps=whole_steps)


def tokens_of_call(name: str, dataset: str) -> int:
    """Return the default token limit of an agent's model calls."""
    family = family_type(dataset)
    if family is None or family.trained_agent() != name:
        family = family_type(name) or family
    return TaskFamily.max_new_tokens if family is None else family.max_new_tokens


def _environment_family(spec: str) -> TaskFamily | None:
    """Return the family of tasks of this name that is an environment; None if there is none."""
    family = family_type(spec)
    return family(spec.partition(":")[2]) if family is not None and family.is_environment else None


@lru_cache(maxsize=16)  # the agent and the tasks of a run share one object
def load_environment(spec: str) -> Environment:
    """Return an environment by its name.

    - `verifiers:NAME`, `openenv:URL`, `gymnasium:ID` or `gymnasium:module:Class`, each with options after a question
      mark, such as `gymnasium:ID?max_turns=8`;
    - a family of tasks, such as `countdown` or `reasoning_gym:chain_sum`;
    - `module:Class` of a user's `Environment`, or the name of a plugin.

    Raises:
        UserError: there is none of this name, or it cannot be created.
        MissingPackageError: the package that it needs is not installed.
    """
    family = _environment_family(spec)
    if family is not None:
        environment: Environment = family.recipe().agent.environment
        return environment
    kind, _, rest = spec.partition(":")
    if kind in _FOREIGN:
        name, options = named_options(rest, setting="env")
        if not name:
            raise UserError(f"{spec!r} names no environment: write it as {kind}:{_FOREIGN[kind]}", setting="env")
        made: Environment = load_part("environments", setting="env").make_environment(kind, name, options)
        return made
    known = (
        "verifiers:NAME, openenv:URL, gymnasium:ID, reasoning_gym:NAME, a family of tasks, or module:Class of an "
        "Environment"
    )
    user_environment = object_named(spec, "environments", setting="env", known=known)
    if not isinstance(user_environment, Environment):
        kind = type(user_environment).__name__
        raise UserError(f"{spec!r} is a {kind}, which lacks `tasks` or `rollout`", setting="env")
    return user_environment


def _environment_tasks(spec: str, split: str, size: int | None, seed: int) -> TaskRows:
    """Return tasks of an environment, each with an `id` and a `question`."""
    environment = load_environment(spec)
    try:
        rows = list(environment.tasks(split, DEFAULT_SIZE if size is None else size, seed))
        tasks = [{"id": f"{split}-{at}", "answer": "", **row} for at, row in enumerate(rows)]
    except UserError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise UserError(f"{spec} gives no tasks: {type(error).__name__}: {error}", setting="env") from error
    if not tasks:
        raise UserError(f"{spec} has no tasks in the split {split}", setting="env")
    for task in tasks:
        if "question" not in task:
            fields = {name: value for name, value in task.items() if name != "id"}
            task["question"] = json.dumps(fields, sort_keys=True, default=str)
    return TaskRows(tasks)
