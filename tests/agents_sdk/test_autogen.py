"""AutoGen's assistant."""

from __future__ import annotations

import train_autogen

from mini_agentic_rl import rollout
from mini_agentic_rl.rewards.math import is_correct

from .conversation import check_tool_loop


async def test_the_tool_loop_is_one_trained_conversation():
    await check_tool_loop(train_autogen.solve)


@rollout
async def streamed(task, llm):
    client = train_autogen.make_client(llm)
    async for event in train_autogen.make_agent(client, stream=True).run_stream(task=task["question"]):
        last = event
    await client.close()
    return float(is_correct(last.messages[-1].to_model_text(), task["answer"]))


async def test_streaming_leaves_the_same_conversation():
    await check_tool_loop(streamed)
