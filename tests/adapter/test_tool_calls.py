"""Tool calls are counted from the spans of a rollout, and none where no tool was offered."""

from __future__ import annotations

import json

import pytest

from mini_agentic_rl.adapter import count_tool_calls
from mini_agentic_rl.types import Span

TOOLS = json.dumps([{"type": "function", "function": {"name": "calculator"}}])
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "calculator"}}]}


def call(reply, *, tools=True, compact=True):
    separators = (",", ":") if compact else None
    attributes = {"gen_ai.output.messages": json.dumps(reply, separators=separators)}
    return span("openai.chat.completion", attributes | ({"gen_ai.tool.definitions": TOOLS} if tools else {}))


def span(name, attributes):
    return Span(
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=1,
        trace_id="1" * 32,
        span_id="1" * 16,
        name=name,
        start_time=1.0,
        end_time=2.0,
        attributes=attributes,
    )


@pytest.mark.parametrize("compact", [True, False])
def test_each_answer_that_calls_a_tool_counts(compact):
    said = {"role": "assistant", "content": "2"}
    assert count_tool_calls([call(CALL, compact=compact), call(said), call(CALL, compact=compact)]) == 2


def test_text_that_looks_like_a_call_and_an_empty_list_of_calls_are_none():
    quoted = {"role": "assistant", "content": json.dumps(CALL)}
    empty = {"role": "assistant", "content": "2", "tool_calls": []}
    assert count_tool_calls([call(quoted), call(empty)]) == 0


def test_without_tools_there_is_no_number():
    assert count_tool_calls([call(CALL, tools=False)]) is None
    assert count_tool_calls([span("agentlightning.annotation", {"gen_ai.tool.definitions": TOOLS})]) is None
    assert count_tool_calls([]) is None
