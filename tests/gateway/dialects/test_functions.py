"""The older form of calls, `functions`, with the real OpenAI SDK over a real socket."""

from __future__ import annotations

import json

import openai
import pytest
from openai import OpenAI

from mini_agentic_rl.gateway.dialects.chat import as_tools

from ..samples import CALCULATOR, CALL_TEXT

QUESTION = [{"role": "user", "content": "12+30?"}]
FUNCTIONS = [CALCULATOR["function"]]


def client_of(server):
    return OpenAI(base_url=server.endpoint, api_key="none", max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_of_calls_goes_on_from_the_recorded_tokens(serve, stream):
    server, sampler = serve([f"Let me see.\n{CALL_TEXT}\n{CALL_TEXT}", "The answer is 42."])
    client = client_of(server)
    asked = {"model": "tiny", "functions": FUNCTIONS, "stream": stream}
    first = client.chat.completions.create(**asked, messages=QUESTION)
    if stream:
        parts = [choice for chunk in first for choice in chunk.choices]
        said = {
            "role": "assistant",
            "content": "".join(part.delta.content or "" for part in parts),
            "function_call": next(part.delta.function_call for part in parts if part.delta.function_call).to_dict(),
        }
        reason = parts[-1].finish_reason
    else:
        said = first.choices[0].message.to_dict()
        reason = first.choices[0].finish_reason
    assert reason == "function_call"
    assert "tool_calls" not in said
    assert json.loads(said["function_call"]["arguments"]) == {"expression": "12+30"}
    history = [*QUESTION, said, {"role": "function", "name": "calculate", "content": "42"}]
    client.chat.completions.create(**asked, messages=history)
    counters = server.service.memory.counters()
    assert (counters["continued"], counters["forked"]) == (1, 0)
    assert len(sampler.requests) == 2


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, {}),
        ({"function_call": "none"}, {"tool_choice": "none"}),
        (
            {"function_call": {"name": "calculate"}},
            {"tool_choice": {"type": "function", "function": {"name": "calculate"}}},
        ),
    ],
)
def test_a_request_of_the_older_form_is_one_of_the_present(choice, expected):
    assert as_tools({"model": "tiny", "messages": QUESTION, "functions": FUNCTIONS, **choice}) == {
        "model": "tiny",
        "messages": QUESTION,
        "tools": [CALCULATOR],
        "parallel_tool_calls": False,
        **expected,
    }


def test_a_call_and_its_result_have_one_id():
    history = [
        *QUESTION,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "42"},
    ]
    _, call, result = as_tools({"messages": history})["messages"]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]


def test_functions_that_are_no_list_are_refused(serve):
    server, _ = serve(["ok"])
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(server).chat.completions.create(model="tiny", messages=QUESTION, extra_body={"functions": 3})
    assert caught.value.param == "functions"
