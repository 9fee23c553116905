"""Python functions as tools of a model, as TRL and transformers have them: schema by signature and docstring."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import UserError

Tool = Callable[..., Any]

_NO_TOOLS = ("reset", "get_reward")


def methods_of(environment: Any) -> list[Tool]:
    """Return the methods of an environment that the model may call: the public ones of its class but for `reset` and
    `get_reward`."""
    names = [name for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)]
    return [getattr(environment, name) for name in names if name not in _NO_TOOLS and not name.startswith("_")]


def schemas_of(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return what the model is shown of tools.

    Raises:
        UserError: one has no docstring or type hints that say what it takes.
    """
    from transformers.utils import get_json_schema

    found = []
    for tool in tools:
        try:
            found.append(get_json_schema(tool))
        except Exception as error:  # its reader raises errors of several kinds, all of them about the function
            name = getattr(tool, "__qualname__", repr(tool))
            first = str(error).strip().partition("\n")[0]
            raise UserError(f"{name} cannot be a tool: {first}", setting="environment_factory") from error
    return found


async def call_tool(tools: Mapping[str, Tool], name: str, arguments: str) -> str:
    """Return the result of a tool call as text; what goes wrong is a result too, as the model reads it in TRL."""
    try:
        values = json.loads(arguments or "{}")
        if name not in tools:
            raise ValueError(f"Tool {name} not found.")
        tool = tools[name]
        result = await tool(**values) if inspect.iscoroutinefunction(tool) else await asyncio.to_thread(tool, **values)
    except Exception as error:  # the model's call, or the environment's answer to it
        result = {"error": str(error)}
    return str(result)
