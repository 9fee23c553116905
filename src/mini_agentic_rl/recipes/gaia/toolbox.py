"""Tools as functions: what the model is told of them, and how its calls are answered.

No search engine comes with this package: `web_search_tool` makes a tool of any function that takes a query and returns
text, and `GaiaAgent(tools=[…])` takes it along with the local ones.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...tools import CALCULATOR_TOOL, calculate

MAX_RESULT = 8000
"""Characters of a tool's result that the model gets to read."""


@dataclass(frozen=True)
class FunctionTool:
    """A function that the model may call.

    `run` gets the arguments as the model gave them, checked against nothing but the required names; what it returns is
    the result, and a ValueError that it raises is told to the model. It is called in a thread, and may give an
    awaitable instead of the text.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object."""
    run: Callable[[Mapping[str, Any]], str | Awaitable[str]]

    @property
    def schema(self) -> dict[str, Any]:
        """Return the tool as an OpenAI function."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


class Toolbox:
    """Several tools by name.

    Raises:
        ValueError: two have the same name.
    """

    def __init__(self, tools: Sequence[FunctionTool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) < len(tools):
            raise ValueError(f"several tools have the same name, among {sorted(tool.name for tool in tools)}")
        self.schemas = [tool.schema for tool in tools]

    async def use(self, name: str, arguments: str) -> str:
        """Return the result of a call, for the model to read; "error: …" where the call makes no sense.

        `arguments` is the JSON text that the model produced. What a tool raises other than ValueError is its fault, not
        the model's, and goes on to the caller.
        """
        tool = self._tools.get(name)
        if tool is None:
            return f"error: no tool named {name[:40]}; use {', '.join(self._tools)}"
        try:
            values = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return "error: arguments are not valid JSON"
        if not isinstance(values, dict):
            return "error: arguments must be a JSON object"
        missing = [wanted for wanted in tool.parameters.get("required", ()) if wanted not in values]
        if missing:
            return f"error: the argument {missing[0]} is missing"
        try:
            result = await asyncio.to_thread(tool.run, values)
            text = str(await result if inspect.isawaitable(result) else result)
        except ValueError as error:
            return f"error: {error}"
        return (
            text if len(text) <= MAX_RESULT else f"{text[:MAX_RESULT]}\n[{len(text) - MAX_RESULT} characters left out]"
        )


def calculator_tool() -> FunctionTool:
    """Return the calculator of the math agent."""
    function = CALCULATOR_TOOL["function"]
    return FunctionTool(
        function["name"],
        function["description"],
        function["parameters"],
        lambda arguments: calculate(str(arguments["expression"])),
    )


def web_search_tool(search: Callable[[str], str | Awaitable[str]]) -> FunctionTool:
    """Return a tool that hands the model's query to `search`, sync or async, and its text back to the model."""

    return FunctionTool(
        "web_search",
        "Search the web. Gives the most relevant passages with their addresses.",
        {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        lambda arguments: search(str(arguments["query"])),
    )
