"""The SQL agent as a job takes it. The extra is looked for here: without it the error says what to install."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ...environments import Demonstrations, Recipe
from .data import SQL_TOOLS, demonstration


def sql_recipe(database: Path | None = None, **reward: Any) -> Recipe:
    """Return the SQL agent over the medical database unless there is another; `reward` are the fields of `SqlReward`.

    Raises:
        MissingPackageError: the extra is not installed.
        UserError: a setting cannot work.
    """
    from .agent import SqlAgent
    from .reward import SqlReward

    agent = SqlAgent(database=database, reward=SqlReward(**reward))
    shown = partial(demonstration, prompt=agent.system_prompt)
    return Recipe(agent, (), Demonstrations(shown, lambda task: SQL_TOOLS, lambda task: "rows" in task))
