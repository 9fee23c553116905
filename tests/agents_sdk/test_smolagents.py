"""The tool-calling agent of smolagents, which calls a tool in every turn and words its history anew."""

from __future__ import annotations

import numpy as np
import pytest
import train_smolagents

from mini_agentic_rl import rollout
from mini_agentic_rl.adapter import TraceToTokenTree
from mini_agentic_rl.rewards.math import is_correct

from .conversation import CALL, RESULT, converse

ANSWER = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "46371.0"}}\n</tool_call>'


@rollout
def streamed(task, llm):
    for step in train_smolagents.make_agent(llm, stream=True).run(task["question"], stream=True):
        last = step
    return float(is_correct(str(last.output), task["answer"]))


@pytest.mark.parametrize("agent", [train_smolagents.solve, streamed], ids=["whole", "streamed"])
async def test_each_turn_is_a_trained_branch_of_one_tree(agent):
    conversation = await converse(agent, [CALL, ANSWER])
    assert [text.removesuffix("<|im_end|>") for text in conversation.said()] == [CALL, ANSWER]
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
