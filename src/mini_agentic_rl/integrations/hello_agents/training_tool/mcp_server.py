"""The training tool as a server of the Model Context Protocol, over standard input and output.

    python -m mini_agentic_rl.integrations.hello_agents.training_tool.mcp_server --root FOLDER --max-trainings 1

It offers one tool, `rl_training`. Clients give up after a while: for what takes long, `start` is the action, not
`train`. Needs the extra `recipes`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from ....errors import MissingPackageError

try:
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool
except ImportError as error:
    missing = MissingPackageError("the MCP server of the training tool", "mcp 2", extra="recipes")
    if __name__ == "__main__":
        sys.exit(f"error: {missing}")
    raise missing from error

from .parameters import json_schema
from .tool import RLTrainingTool


def training_server(tool: RLTrainingTool) -> Server[Any]:
    """Return the server of a tool. Calls run in threads, so that a training can be watched while another call waits."""

    async def list_tools(context: Any, parameters: Any) -> ListToolsResult:
        offered = Tool(name=tool.name, description=tool.description, input_schema=json_schema())
        return ListToolsResult(tools=[offered])

    async def call_tool(context: Any, parameters: CallToolRequestParams) -> CallToolResult:
        if parameters.name != tool.name:
            return _result(f"there is no tool {parameters.name!r}; there is {tool.name}", is_error=True)
        text = await asyncio.to_thread(tool.run, parameters.arguments or {})
        return _result(text, is_error=not json.loads(text)["success"])

    return Server("rl-training", on_list_tools=list_tools, on_call_tool=call_tool)


def _result(text: str, *, is_error: bool) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=is_error)


async def serve(tool: RLTrainingTool) -> None:
    """Serve until standard input is closed."""
    server = training_server(tool)
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="folder for all output (the working directory)")
    parser.add_argument("--data-folder", type=Path, action="append", default=[], help="folder whose files may be read")
    parser.add_argument(
        "--model-folder", type=Path, action="append", default=[], help="folder whose models may be used"
    )
    parser.add_argument("--max-trainings", type=int, default=1, help="trainings at the same time")
    options = parser.parse_args()
    tool = RLTrainingTool(
        options.root,
        data_folders=options.data_folder,
        model_folders=options.model_folder,
        max_trainings=options.max_trainings,
    )
    asyncio.run(serve(tool))


if __name__ == "__main__":
    main()
