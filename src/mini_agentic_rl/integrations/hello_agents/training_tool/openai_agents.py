"""The training tool for agents of the OpenAI Agents SDK. Needs the package openai-agents (extra `agents`)."""

from __future__ import annotations

import asyncio
from typing import Any

from ....errors import MissingPackageError
from .parameters import json_schema
from .tool import RLTrainingTool


def openai_agents_tool(tool: RLTrainingTool) -> Any:
    """Return a `FunctionTool` for `agents.Agent(tools=[…])`. A call runs in a thread: the event loop goes on meanwhile.

    Raises:
        MissingPackageError: openai-agents is not installed.
    """
    try:
        from agents import FunctionTool
    except ImportError as error:
        raise MissingPackageError("openai_agents_tool", "openai-agents", extra="agents") from error

    async def invoke(context: Any, arguments: str) -> str:
        return await asyncio.to_thread(tool.run, arguments)

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=json_schema(),
        on_invoke_tool=invoke,
        strict_json_schema=False,  # a strict schema would ask for every parameter
    )
