"""The tool in the hands of agents: over MCP, in openai-agents, and in the package's own agent."""

from __future__ import annotations

import json
import sys

import pytest
from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from mcp import Client, StdioServerParameters, stdio_client
from openai import AsyncOpenAI

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.integrations.hello_agents import LLMConfig, SimpleAgent
from mini_agentic_rl.integrations.hello_agents.training_tool.mcp_server import training_server
from mini_agentic_rl.integrations.hello_agents.training_tool.openai_agents import openai_agents_tool
from mini_agentic_rl.tools import RLTrainingTool

LOOK = {"action": "load_dataset", "dataset": "arithmetic", "max_samples": 2}


@pytest.fixture
def endpoint():
    """A model that looks at a data set and then answers."""
    tokenizer = small_tokenizer(CHATML_TOOLS)
    call = f"<tool_call>\n{json.dumps({'name': 'rl_training', 'arguments': LOOK})}\n</tool_call>"
    backend = ScriptedSampler(tokenizer, [call, "There are two rows."], context_length=100_000)
    with MiniLLMServer(backend, tokenizer, model_name="tiny") as server:
        yield server.endpoint


async def test_the_tool_is_served_over_stdio(tmp_path):
    arguments = ["-m", "mini_agentic_rl.integrations.hello_agents.training_tool.mcp_server", "--root", str(tmp_path)]
    async with Client(stdio_client(StdioServerParameters(command=sys.executable, args=arguments))) as server:
        (offered,) = (await server.list_tools()).tools
        assert offered.name == "rl_training"
        assert "output_dir" in offered.input_schema["properties"]
        result = await server.call_tool("rl_training", LOOK)
        assert not result.is_error
        assert json.loads(result.content[0].text)["dataset_size"] == 2


async def test_a_wrong_call_is_an_error_of_the_tool(tmp_path):
    async with Client(training_server(RLTrainingTool(tmp_path))) as server:
        result = await server.call_tool("rl_training", {"action": "train", "algorithm": "grop"})
        assert result.is_error
        assert "did you mean 'grpo'" in result.content[0].text


async def test_an_agent_of_the_openai_agents_sdk_uses_it(tmp_path, endpoint):
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=endpoint, api_key="none") as client:
        tool = openai_agents_tool(RLTrainingTool(tmp_path))
        agent = Agent("trainer", model=OpenAIChatCompletionsModel("tiny", client), tools=[tool])
        result = await Runner.run(agent, "How many rows are there?")
    assert result.final_output == "There are two rows."
    told = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert [json.loads(text)["dataset_size"] for text in told] == [2]


def test_the_agent_of_the_package_uses_it(tmp_path, endpoint):
    agent = SimpleAgent("trainer", LLMConfig(model="tiny", base_url=endpoint), [RLTrainingTool(tmp_path)])
    assert agent.run("How many rows are there?") == "There are two rows."
    assert json.loads(agent.messages[-2]["content"])["dataset_size"] == 2
