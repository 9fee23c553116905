"""Look up an environment by what `env` names: ours, another package's, a plugin's, or one of the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from ...datasets import TaskRows, named_options
from ...datasets.episodes import find_episodes, is_episodes
from ...errors import UserError
from ..own_object import own_object
from ..recipe import Demonstrations, Recipe
from .agent import EnvironmentAgent
from .environment import DEFAULT_SIZE, Environment, EpisodeEnvironment


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
    if is_episodes(spec):
        return EpisodeEnvironment(find_episodes(spec))
    kind, _, rest = spec.partition(":")
    if kind in _FOREIGN:
        name, options = named_options(rest, setting="env")
        if not name:
            raise UserError(f"{spec!r} names no environment: write it as {kind}:{_FOREIGN_NAMES[kind]}", setting="env")
        return _FOREIGN[kind](name, options)
    return _own(spec)


def environment_recipe(spec: str) -> Recipe:
    """Return the agent of an environment with its tasks, and the demonstrations of its expert where it has one.

    Raises:
        UserError: see `load_environment`.
        MissingPackageError: the package that it needs is not installed.
    """
    environment = load_environment(spec)
    demonstrations = None
    if isinstance(environment, EpisodeEnvironment):
        episodes = environment.episodes
        demonstrations = Demonstrations(episodes.demonstration, lambda task: episodes.tools, episodes.can_be_shown)
    return Recipe(EnvironmentAgent(environment), (), demonstrations)


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
    return TaskRows([{"question": _told(row), **row} for row in found])


def _told(row: Mapping[str, Any]) -> str:
    """Return what tells a task from others."""
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


def _verifiers(name: str, options: Mapping[str, Any]) -> Environment:
    from .verifiers import VerifiersEnvironment

    return VerifiersEnvironment(name, options)


def _openenv(url: str, options: Mapping[str, Any]) -> Environment:
    from .openenv import OpenEnvEnvironment

    try:
        return OpenEnvEnvironment(url, **options)
    except TypeError as error:
        raise UserError(f"openenv:{url} has the options max_turns, system and reset: {error}", setting="env") from error


def _gymnasium(name: str, options: Mapping[str, Any]) -> Environment:
    from .gymnasium import gymnasium_environment

    return gymnasium_environment(name, options)


_FOREIGN: Final[Mapping[str, Callable[[str, Mapping[str, Any]], Environment]]] = {
    "verifiers": _verifiers,
    "openenv": _openenv,
    "gymnasium": _gymnasium,
}
_FOREIGN_NAMES: Final = {"verifiers": "NAME", "openenv": "http://host:port", "gymnasium": "ID or module:Class"}
