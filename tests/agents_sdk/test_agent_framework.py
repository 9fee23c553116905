"""Microsoft's Agent Framework, on both of its APIs."""

from __future__ import annotations

import pytest
import train_agent_framework

from mini_agentic_rl import rollout
from mini_agentic_rl.rewards.math import is_correct

from .conversation import check_tool_loop

APIS = ("responses", "chat")


@pytest.mark.parametrize("api", APIS)
async def test_the_tool_loop_is_one_trained_conversation(api):
    await check_tool_loop(train_agent_framework.Solver(api))


@pytest.mark.parametrize("api", APIS)
async def test_streaming_leaves_the_same_conversation(api):
    @rollout
    async def streamed(task, llm):
        stream = train_agent_framework.make_agent(llm, api).run(task["question"], stream=True)
        response = await stream.get_final_response()
        return float(is_correct(response.text, task["answer"]))

    await check_tool_loop(streamed)
