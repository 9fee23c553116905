"""The plain OpenAI SDK."""

from __future__ import annotations

import json

import train_openai
from openai import AsyncOpenAI

from mini_agentic_rl import rollout
from mini_agentic_rl.rewards.math import is_correct
from mini_agentic_rl.tools import CALCULATOR_TOOL, calculate

from .conversation import check_tool_loop


async def test_the_tool_loop_is_one_trained_conversation():
    await check_tool_loop(train_openai.solve)


@rollout
async def streamed(task, llm):
    """The same agent with the SDK's streaming helper."""
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


async def test_streaming_leaves_the_same_conversation():
    await check_tool_loop(streamed)
