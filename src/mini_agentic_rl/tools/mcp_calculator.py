"""The calculator as a server of the Model Context Protocol, over standard input and output.

    python -m mini_agentic_rl.tools.mcp_calculator

It has one tool, `calculator`, with one text argument, `expression`. Needs the extra `recipes`.
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

    def calculator(expression: str) -> CallToolResult:
        """Return the result of `calculate`; its errors are errors of the tool."""
        result = calculate(expression)
        return CallToolResult(content=[TextContent(text=result)], is_error=result.startswith("error: "))

    function = CALCULATOR_TOOL["function"]
    server = MCPServer("calculator", log_level="WARNING")
    server.add_tool(calculator, name=function["name"], description=function["description"])
    return server


if __name__ == "__main__":
    calculator_server().run("stdio")
