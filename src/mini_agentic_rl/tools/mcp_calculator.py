"""The calculator as a server of the Model Context Protocol, over standard input and output.

    python -m mini_agentic_rl.tools.mcp_calculator

It offers one tool, `calculator`, with one text argument, `expression`. Needs the extra `recipes`.
"""

from __future__ import annotations

import sys

from ..errors import MissingPackageError

try:
    from mcp.server import MCPServer
    from mcp.types import CallToolResult, TextContent
except ImportError as error:
    missing = MissingPackageError("the MCP calculator", "mcp 2", extra="recipes")
    if __name__ == "__main__":
        sys.exit(f"error: {missing}")
    raise missing from error

from . import CALCULATOR_TOOL, calculate


def calculator_server() -> MCPServer:
    """Return the server; its `run("stdio")` serves until standard input is closed."""
    function = CALCULATOR_TOOL["function"]
    server = MCPServer("calculator", log_level="WARNING")
    server.add_tool(_calculator, name=function["name"], description=function["description"])
    return server


def _calculator(expression: str) -> CallToolResult:
    """Return the value as text. What cannot be computed is an error of the tool, told in the same words as by
    `calculate`."""
    result = calculate(expression)
    return CallToolResult(content=[TextContent(text=result)], is_error=result.startswith("error: "))


if __name__ == "__main__":
    calculator_server().run("stdio")
