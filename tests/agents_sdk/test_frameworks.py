"""Agents of each framework, by whole answers and by streams: the tool loop is one conversation, and is trained."""

from __future__ import annotations

import json

import numpy as np
import pytest
import train_agent_framework
import train_autogen
import train_langchain
import train_langgraph
import train_mcp
import train_mcp_openai_agents
import train_openai
import train_openai_agents
import train_smolagents
from agents import Runner
from mcp import Client, stdio_client
from openai import AsyncOpenAI

from mini_agentic_rl import rollout
from mini_agentic_rl.adapter import TraceToTokenTree
from mini_agentic_rl.rewards.math import is_correct
from mini_agentic_rl.tools import CALCULATOR_TOOL, calculate
from mini_agentic_rl.tools.mcp_calculator import calculator_server

from .conversation import CALL, RESULT, check_tool_loop, converse


@rollout
async def openai_streamed(task, llm):
    """The example's agent with the SDK's streaming helper."""
    messages = [{"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        while messages[-1]["role"] != "assistant":
            async with client.chat.completions.stream(
                model=llm.model, messages=messages, tools=[CALCULATOR_TOOL], **llm.sampling_parameters
            ) as stream:
                reply = (await stream.get_final_completion()).choices[0].message
            messages.append(reply.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            for call in reply.tool_calls or ():
                result = calculate(json.loads(call.function.arguments)["expression"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return float(is_correct(messages[-1]["content"], task["answer"]))


async def _streamed_answer(agent, question):
    running = Runner.run_streamed(agent, question)
    async for _ in running.stream_events():
        pass
    return str(running.final_output)


def openai_agents_streamed(api):
    @rollout
    async def streamed(task, llm):
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
            answer = await _streamed_answer(train_openai_agents.make_agent(llm, client, api), task["question"])
        return float(is_correct(answer, task["answer"]))

    return streamed


@rollout
async def mcp_streamed(task, llm):
    async with (
        train_mcp_openai_agents.make_server() as server,
        AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client,
    ):
        answer = await _streamed_answer(train_mcp_openai_agents.make_agent(llm, client, server), task["question"])
    return float(is_correct(answer, task["answer"]))


def agent_framework_streamed(api):
    @rollout
    async def streamed(task, llm):
        stream = train_agent_framework.make_agent(llm, api).run(task["question"], stream=True)
        response = await stream.get_final_response()
        return float(is_correct(response.text, task["answer"]))

    return streamed


@rollout
async def autogen_streamed(task, llm):
    client = train_autogen.make_client(llm)
    async for event in train_autogen.make_agent(client, stream=True).run_stream(task=task["question"]):
        last = event
    await client.close()
    return float(is_correct(last.messages[-1].to_model_text(), task["answer"]))


def langchain_streamed(make):
    @rollout
    async def streamed(task, llm):
        said: dict[str, str] = {}
        question = {"messages": [("user", task["question"])]}
        async for part, _ in make(llm).astream(question, stream_mode="messages"):
            said[part.id] = said.get(part.id, "") + part.text
        return float(is_correct(list(said.values())[-1], task["answer"]))

    return streamed


AGENTS = {
    "openai": lambda: train_openai.solve,
    "openai, streamed": lambda: openai_streamed,
    "openai-agents on responses": lambda: train_openai_agents.Solver("responses"),
    "openai-agents on chat": lambda: train_openai_agents.Solver("chat"),
    "openai-agents on responses, streamed": lambda: openai_agents_streamed("responses"),
    "openai-agents on chat, streamed": lambda: openai_agents_streamed("chat"),
    "agent-framework on responses": lambda: train_agent_framework.Solver("responses"),
    "agent-framework on chat": lambda: train_agent_framework.Solver("chat"),
    "agent-framework on responses, streamed": lambda: agent_framework_streamed("responses"),
    "agent-framework on chat, streamed": lambda: agent_framework_streamed("chat"),
    "autogen": lambda: train_autogen.solve,
    "autogen, streamed": lambda: autogen_streamed,
    "langchain": lambda: train_langchain.solve,
    "langchain, streamed": lambda: langchain_streamed(train_langchain.make_agent),
    "langgraph": lambda: train_langgraph.solve,
    "langgraph, streamed": lambda: langchain_streamed(train_langgraph.make_graph),
    "mcp": lambda: train_mcp.solve,
    "mcp with openai-agents": lambda: train_mcp_openai_agents.solve,
    "mcp with openai-agents, streamed": lambda: mcp_streamed,
}


@pytest.mark.parametrize("name", AGENTS)
async def test_the_tool_loop_is_one_trained_conversation(name):
    await check_tool_loop(AGENTS[name]())


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


FINAL_ANSWER = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "46371.0"}}\n</tool_call>'


@rollout
def smolagents_streamed(task, llm):
    for step in train_smolagents.make_agent(llm, stream=True).run(task["question"], stream=True):
        last = step
    return float(is_correct(str(last.output), task["answer"]))


@pytest.mark.parametrize("agent", [train_smolagents.solve, smolagents_streamed], ids=["whole", "streamed"])
async def test_each_turn_of_smolagents_is_a_trained_branch_of_one_tree(agent):
    """It calls a tool in every turn, and words its history anew."""
    conversation = await converse(agent, [CALL, FINAL_ANSWER])
    assert [text.removesuffix("<|im_end|>") for text in conversation.said()] == [CALL, FINAL_ANSWER]
    first, second = conversation.records
    assert RESULT not in conversation.tokenizer.decode(first.prompt_ids)
    assert RESULT in conversation.tokenizer.decode(second.prompt_ids)
    whole, other = (np.concatenate([record.prompt_ids, record.output_ids]) for record in (first, second))
    shared = int(np.argmax(whole != other[: whole.size]))
    assert first.prompt_ids.size <= shared < whole.size - 1
    tree = TraceToTokenTree().adapt(conversation.spans)
    assert tree.token_count == whole.size + other.size - shared
    assert conversation.trained() == "".join(conversation.said())
    assert conversation.reward == 1.0
