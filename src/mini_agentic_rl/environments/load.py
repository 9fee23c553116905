"""Agents, environments and tasks by name: of the recipes of this package, of plugins, or of modules of the user."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ..datasets import (
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
from ..plugins import Kind, load_part, load_plugin, or_plugin
from ..user_code import load_object
from .environment import DEFAULT_SIZE, Environment, EnvironmentAgent, Recipe

ENV: Final = "env:"
"""Before the name of an environment, where an agent or a data set is named: its agent, and its tasks."""
_INSTRUCTIONS: Final = ("*/instruction.md", "*/*/instruction.md")
"""Patterns of the files that a folder of tasks with files of their own has."""
_FOREIGN: Final = {"verifiers": "NAME", "openenv": "http://host:port", "gymnasium": "ID or module:Class"}
"""Packages whose environments are named as `package:NAME`, and how the name is written."""


def load_recipe(name: str, dataset: str = "") -> Recipe:
    """Return the recipe of a task family, as `math` or `units`, that of a plugin, that of an environment (`env:NAME`,
    by a name as `load_environment` takes it), or that of a user's `module:ClassName` of a LitAgent.

    `dataset` is the name of the tasks: the agent of a family may depend on it, as on the generator of `reasoning_gym`.

    A user's agent is scored by what its rollouts return, by what they emit, and by the hooks in its attribute `hooks`.

    Raises:
        UserError: there is no such agent.
    """
    if name.startswith(ENV):
        return environment_recipe(name.removeprefix(ENV))
    tasks = split_style(dataset)[0]
    family = family_type(tasks)
    own = tasks if family is not None and family.trained_agent() == name else name
    made = find_family(own)
    if made is not None:
        recipe: Recipe = made.recipe()
        return recipe
    known = f"{', '.join(map(repr, agent_names()))}, or module:ClassName of a LitAgent"
    agent = own_object(name, "agents", setting="agent", known=known)
    if not isinstance(agent, LitAgent):
        raise UserError(f"{name!r} is a {type(agent).__name__}, not a LitAgent", setting="agent")
    return Recipe(agent, list(getattr(agent, "hooks", ())))


def load_tasks(dataset: str, split: str, size: int | None, seed: int, difficulty: Sequence[int]) -> TaskRows:
    """Return the tasks of a split; `difficulty` holds the levels that generated data sets draw from.

    Raises:
        UserError: no such data set, or its extra is not installed.
    """
    if dataset.startswith(ENV):
        return environment_tasks(dataset.removeprefix(ENV), split, size, seed)
    name, as_text = split_style(dataset)
    family = find_family(name)
    if family is not None:
        wanted = family.training_size if size is None else size
        rows = family.tasks(split, wanted, seed, family.chosen_levels or tuple(difficulty))
        return in_text(rows) if as_text else rows
    path = Path(dataset)
    if path.is_dir() and any(next(path.glob(pattern), None) for pattern in _INSTRUCTIONS):
        harness = load_part("harness", setting="dataset")
        if harness.is_task_folder(path):
            tasks: TaskRows = harness.load_task_folder(path, split, size, seed)
            return tasks
    return load_task_dataset(dataset, split, size, seed)


def training_defaults(name: str, dataset: str, *, mixes: bool = False, whole_steps: bool = False) -> Mapping[str, Any]:
    """Return what a training of an agent on these tasks takes where nothing is given: a value for the path of each
    setting, as `lora.r`.

    Args:
        name: of the agent.
        dataset: of its tasks.
        mixes: the training can, and may, imitate in the steps of its reinforcement learning.
        whole_steps: sampling waits for learning, so that failed tasks of a step can be tried again.
    """
    family = (family_type(name) or _closed(dataset)) if name else None
    if family is None:
        return SHORT_IMITATION
    return family.training_defaults(dataset, mixes=mixes, whole_steps=whole_steps)


def tokens_of_call(name: str, dataset: str) -> int:
    """Return the tokens that a call of an agent needs: a query, an expression, a guess, or a solution in words."""
    family = family_type(dataset)
    if family is None or family.trained_agent() != name:
        family = family_type(name) or family
    return TaskFamily.max_new_tokens if family is None else family.max_new_tokens


def _closed(dataset: str) -> type[TaskFamily] | None:
    """Return the family of tasks that only its own agent takes; None for other tasks."""
    family = family_type(dataset)
    return None if family is None or family.is_open else family


@lru_cache(maxsize=16)  # the agent and the tasks of a run come from one object
def load_environment(spec: str) -> Environment:
    """Return the environment that a text names.

    - `verifiers:NAME`, `openenv:URL`, `gymnasium:ID` or `gymnasium:module:Class`, each with options behind a question
      mark, as `gymnasium:ID?max_turns=8`;
    - a family of tasks of ours, as `countdown` or `reasoning_gym:chain_sum`;
    - `module:Class` of an `Environment` of the user's, or the name of a plugin.

    Raises:
        UserError: there is none of this name, or it cannot be made.
        MissingPackageError: the package that it needs is not installed.
    """
    family = family_type(spec)
    if family is not None and family.is_environment:
        environment: Environment = family(spec.partition(":")[2]).recipe().agent.environment
        return environment
    kind, _, rest = spec.partition(":")
    if kind in _FOREIGN:
        name, options = named_options(rest, setting="env")
        if not name:
            raise UserError(f"{spec!r} names no environment: write it as {kind}:{_FOREIGN[kind]}", setting="env")
        made: Environment = load_part("environments", setting="env").make_environment(kind, name, options)
        return made
    return _own(spec)


def environment_recipe(spec: str) -> Recipe:
    """Return the agent of an environment, with the demonstrations of its expert if it has one.

    Raises:
        UserError: see `load_environment`.
        MissingPackageError: the package that it needs is not installed.
    """
    family = family_type(spec)
    if family is not None and family.is_environment:
        recipe: Recipe = family(spec.partition(":")[2]).recipe()
        return recipe
    return Recipe(EnvironmentAgent(load_environment(spec)))


def environment_tasks(spec: str, split: str, size: int | None, seed: int) -> TaskRows:
    """Return tasks of an environment, each with an `id` and a `question`.

    Raises:
        UserError: see `load_environment`; or there are none in this split, or they are no mappings.
    """
    environment = load_environment(spec)
    try:
        rows = list(environment.tasks(split, DEFAULT_SIZE if size is None else size, seed))
        found = [{"id": f"{split}-{at}", "answer": "", **row} for at, row in enumerate(rows)]
    except UserError:
        raise
    except Exception as error:  # the user's code may fail in any way
        raise UserError(f"{spec} gives no tasks: {type(error).__name__}: {error}", setting="env") from error
    if not found:
        raise UserError(f"{spec} has no tasks in the split {split}", setting="env")
    return TaskRows([{"question": _description(row), **row} for row in found])


def _description(row: Mapping[str, Any]) -> str:
    """Return the fields of a task as text: its question, where it has none."""
    return json.dumps({name: value for name, value in row.items() if name != "id"}, sort_keys=True, default=str)


def _own(spec: str) -> Environment:
    known = (
        "verifiers:NAME, openenv:URL, gymnasium:ID, reasoning_gym:NAME, a family of tasks, or module:Class of an "
        "Environment"
    )
    made = own_object(spec, "environments", setting="env", known=known)
    if not isinstance(made, Environment):
        raise UserError(f"{spec!r} is a {type(made).__name__}, which lacks `tasks` or `rollout`", setting="env")
    return made


def own_object(name: str, kind: Kind, *, setting: str, known: str) -> Any:
    """Return the object of a name; a class is called without arguments.

    Args:
        kind: the plugins that a name without a colon is looked up among.
        setting: the setting that gave the name, which errors name.
        known: the names that could have been given instead, as a list in words.

    Raises:
        UserError: there is none of this name, or it cannot be imported or made.
    """
    found = None if ":" in name else load_plugin(kind, name, setting=setting)
    if ":" not in name and found is None:
        raise UserError(f"{name!r} is unknown: give {known}{or_plugin(kind)}", setting=setting)
    try:
        found = load_object(name) if found is None else found
        return found() if isinstance(found, type) else found
    except UserError:
        raise
    except Exception as error:  # the user's module may fail in any way while it is imported
        raise UserError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}", setting=setting) from error
