"""The SQL agent: it answers questions by asking a database, on the OpenAI Agents SDK.

`SqlAgent` is what a trainer runs, `SqlReward` how its rollouts are scored: execution match on two databases, and the
quality of the answer. Questions, database and the words of the conversation are in `datasets.sql`, the tool is
`tools.sql`. Needs the extra `sql`; names are loaded when they are first asked for.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...datasets.sql import SQL_TOOLS, demonstration
from ...errors import UserError
from ..recipe import Demonstrations, Recipe

if TYPE_CHECKING:
    from .agent import SqlAgent as SqlAgent
    from .reward import Queries as Queries
    from .reward import RewardUnavailableError as RewardUnavailableError
    from .reward import SqlReward as SqlReward

_HOME = {"Queries": "reward", "RewardUnavailableError": "reward", "SqlAgent": "agent", "SqlReward": "reward"}

__all__ = ["Queries", "RewardUnavailableError", "SqlAgent", "SqlReward", "sql_recipe"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def sql_recipe(database: Path | None = None, **reward: Any) -> Recipe:
    """Return the SQL agent over the medical database unless there is another; `reward` are the fields of `SqlReward`.

    Raises:
        UserError: the extra is not installed, or a setting cannot work.
    """
    try:
        from .agent import SqlAgent
        from .reward import SqlReward
    except ImportError as error:
        raise UserError(f"sql: {error}", setting="agent") from error
    agent = SqlAgent(database=database, reward=SqlReward(**reward))
    return Recipe(agent, (), Demonstrations(partial(demonstration, prompt=agent.system_prompt), SQL_TOOLS, "rows"))
