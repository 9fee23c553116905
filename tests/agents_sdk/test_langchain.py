"""LangChain's `create_agent`, and a graph of LangGraph."""

from __future__ import annotations

import pytest
import train_langchain
import train_langgraph

from mini_agentic_rl import rollout
from mini_agentic_rl.rewards.math import is_correct

from .conversation import check_tool_loop

MAKERS = {"create_agent": train_langchain.make_agent, "graph": train_langgraph.make_graph}


@pytest.mark.parametrize("example", [train_langchain, train_langgraph])
async def test_the_tool_loop_is_one_trained_conversation(example):
    await check_tool_loop(example.solve)


@pytest.mark.parametrize("maker", MAKERS)
async def test_streaming_leaves_the_same_conversation(maker):
    @rollout
    async def streamed(task, llm):
        said: dict[str, str] = {}
        question = {"messages": [("user", task["question"])]}
        async for part, _ in MAKERS[maker](llm).astream(question, stream_mode="messages"):
            said[part.id] = said.get(part.id, "") + part.text
        return float(is_correct(list(said.values())[-1], task["answer"]))

    await check_tool_loop(streamed)
