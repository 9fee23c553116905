"""The OpenAI Agents SDK, on both of its APIs."""

from __future__ import annotations

import pytest
import train_openai_agents
from agents import Runner
from openai import AsyncOpenAI

from mini_agentic_rl import rollout
from mini_agentic_rl.rewards.math import is_correct

from .conversation import check_tool_loop

APIS = ("responses", "chat")


@pytest.mark.parametrize("api", APIS)
async def test_the_tool_loop_is_one_trained_conversation(api):
    await check_tool_loop(train_openai_agents.Solver(api))


@pytest.mark.parametrize("api", APIS)
async def test_streaming_leaves_the_same_conversation(api):
    @rollout
    async def streamed(task, llm):
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
            running = Runner.run_streamed(train_openai_agents.make_agent(llm, client, api), task["question"])
            async for _ in running.stream_events():
                pass
        return float(is_correct(str(running.final_output), task["answer"]))

    await check_tool_loop(streamed)
