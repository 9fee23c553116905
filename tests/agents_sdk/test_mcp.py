"""Tools of an MCP server over stdio: the calculator server, and the agents that call it."""

from __future__ import annotations

import pytest
import train_mcp
import train_mcp_openai_agents
from agents import Runner
from mcp import Client, stdio_client
from openai import AsyncOpenAI

from mini_agentic_rl import rollout
from mini_agentic_rl.rewards.math import is_correct
from mini_agentic_rl.tools.mcp_calculator import calculator_server

from .conversation import check_tool_loop


async def test_the_calculator_is_served_over_stdio():
    async with Client(stdio_client(train_mcp.CALCULATOR)) as server:
        (tool,) = (await server.list_tools()).tools
        assert tool.name == "calculator"
        assert tool.description == "Evaluate an arithmetic expression."
        assert tool.input_schema["required"] == ["expression"]
        result = await server.call_tool("calculator", {"expression": "2 ** 10 - 1"})
    assert [part.text for part in result.content] == ["1023"]
    assert not result.is_error


@pytest.mark.parametrize(
    ("arguments", "told"), [({"expression": "1 / 0"}, "error: division by zero"), ({"formula": "1"}, "expression")]
)
async def test_what_cannot_be_computed_is_an_error_of_the_tool(arguments, told):
    async with Client(calculator_server()) as server:
        result = await server.call_tool("calculator", arguments)
    assert result.is_error
    assert told in result.content[0].text


@pytest.mark.parametrize("example", [train_mcp, train_mcp_openai_agents])
async def test_the_tool_loop_is_one_trained_conversation(example):
    await check_tool_loop(example.solve)


@rollout
async def streamed(task, llm):
    async with (
        train_mcp_openai_agents.make_server() as server,
        AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client,
    ):
        agent = train_mcp_openai_agents.make_agent(llm, client, server)
        running = Runner.run_streamed(agent, task["question"])
        async for _ in running.stream_events():
            pass
    return float(is_correct(str(running.final_output), task["answer"]))


async def test_streaming_leaves_the_same_conversation():
    await check_tool_loop(streamed)
