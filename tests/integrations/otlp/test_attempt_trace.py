"""An attempt is exported as one trace under OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

import json

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as registry

from integrations.otlp.recorded import ANSWER, ASKED, CALLING, TOLD, two_calls
from mini_agentic_rl.integrations.otlp import AttemptFacts, attempt_trace
from mini_agentic_rl.integrations.otlp.conventions import LONGEST_TEXT, ExportedContent, input_messages, output_messages
from mini_agentic_rl.semconv import GenAiAttributes
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tracer import DummyTracer, OtelTracer
from mini_agentic_rl.types import Span

REGISTRY = {value for name, value in vars(registry).items() if name.startswith("GEN_AI_") and isinstance(value, str)}
OUTDATED = {"gen_ai.system", "gen_ai.prompt", "gen_ai.completion", "gen_ai.usage.prompt_tokens"}


async def trace_of(tracer=None, content=ExportedContent(), **how):  # noqa: B008
    store = InMemoryLightningStore()
    rollout_id = await two_calls(store, tracer, **how)
    attempt = await store.get_latest_attempt(rollout_id)
    facts = AttemptFacts(
        rollout_id,
        attempt.attempt_id,
        agent="calculating",
        status=attempt.status,
        error=attempt.metadata.get("error"),
        start_time=attempt.start_time,
        end_time=attempt.end_time,
    )
    _, spans = attempt_trace(facts, await store.query_spans(rollout_id, attempt.attempt_id), content)
    return spans


def named(spans, name):
    return [span for span in spans if span.name == name]


@pytest.mark.parametrize("tracer", [OtelTracer, DummyTracer])
async def test_an_attempt_is_one_trace_below_its_agent(tracer):
    spans = await trace_of(tracer())
    root = spans[0]
    assert (root.name, root.parent_id) == ("invoke_agent calculating", None)
    assert len({span.trace_id for span in spans}) == 1
    assert len({span.span_id for span in spans}) == len(spans)
    assert {span.parent_id for span in spans[1:]} == {root.span_id}
    names = [span.name for span in spans[1:]]
    expected = ["agentlightning.message", "chat policy", "execute_tool calculate", "look up", "chat policy"]
    assert names == [*expected, "agentlightning.annotation"]
    assert all(root.start_time <= span.start_time <= span.end_time <= root.end_time for span in spans)
    assert all(
        span.attributes["gen_ai.conversation.id"] == span.attributes["agentlightning.rollout_id"] for span in spans
    )


async def test_a_call_has_the_request_the_answer_and_the_counts_of_the_conventions():
    first, second = named(await trace_of(), "chat policy")
    assert first.kind == "client"
    told = {name: value for name, value in second.attributes.items() if isinstance(value, int | float | str | list)}
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.provider.name"] == "mini-agentic-rl"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "policy"
    assert (told["gen_ai.request.temperature"], told["gen_ai.request.max_tokens"]) == (0.7, 32)
    assert told["gen_ai.request.seed"] == 3
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (40, 3)
    assert (told["gen_ai.response.id"], told["gen_ai.response.finish_reasons"]) == ("chatcmpl-4", ["stop"])
    assert told["agentlightning.policy_version"] == 4
    assert json.loads(first.attributes["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "call-1", "name": "calculate", "arguments": {"expression": "6 * 7"}}],
            "finish_reason": "tool_call",
        }
    ]
    assert json.loads(second.attributes["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "You calculate."}]},
        {"role": "user", "parts": [{"type": "text", "content": "What is 6 * 7?"}]},
        {"role": "assistant", "parts": json.loads(first.attributes["gen_ai.output.messages"])[0]["parts"]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call-1", "response": "42"}]},
    ]
    thought, said = json.loads(second.attributes["gen_ai.output.messages"])[0]["parts"]
    assert (thought, said) == (
        {"type": "reasoning", "content": "Six times seven."},
        {"type": "text", "content": "It is 42."},
    )
    (tool,) = json.loads(first.attributes["gen_ai.tool.definitions"])
    assert (tool["type"], tool["name"]) == ("function", "calculate")


async def test_a_tool_that_nobody_traced_is_read_off_the_messages():
    spans = await trace_of()
    (tool,) = named(spans, "execute_tool calculate")
    first, second = named(spans, "chat policy")
    assert first.end_time == tool.start_time < tool.end_time == second.start_time
    assert tool.attributes["gen_ai.tool.call.id"] == "call-1"
    assert json.loads(tool.attributes["gen_ai.tool.call.arguments"]) == {"expression": "6 * 7"}
    assert tool.attributes["gen_ai.tool.call.result"] == "42"
    assert tool.attributes["agentlightning.inferred"] is True


def span_named(name, attributes, start=1, end=2):
    return Span.from_attributes(
        rollout_id="ro", attempt_id="at", name=name, attributes=attributes, start_time=start, end_time=end
    )


def exported(*spans):
    return attempt_trace(AttemptFacts("ro", "at", agent="a"), spans, ExportedContent())[1]


def recorded(messages, answer):
    tools = [{"type": "function", "function": {"name": "calculate"}}]
    return {
        "gen_ai.request.model": "policy",
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.output.messages": json.dumps(answer),
        "gen_ai.tool.definitions": json.dumps(tools),
    }


async def test_a_tool_that_the_agent_traced_is_not_told_twice():
    operation = {
        "agentlightning.operation.name": "calculate",
        "agentlightning.operation.input.expression": "6 * 7",
        "agentlightning.operation.output": 42,
    }
    found = exported(
        span_named("agentlightning.operation", operation),
        span_named("openai.chat.completion", recorded(ASKED, CALLING)),
        span_named("openai.chat.completion", recorded([*ASKED, CALLING, TOLD], ANSWER)),
    )
    (tool,) = named(found, "execute_tool calculate")
    assert json.loads(tool.attributes["gen_ai.tool.call.arguments"]) == {"expression": "6 * 7"}
    assert tool.attributes["gen_ai.tool.call.result"] == "42"
    assert "agentlightning.inferred" not in tool.attributes


async def test_the_root_has_the_sum_of_the_tokens_the_first_question_the_last_answer_the_reward_and_the_error():
    root = (await trace_of())[0]
    assert (root.attributes["gen_ai.usage.input_tokens"], root.attributes["gen_ai.usage.output_tokens"]) == (60, 6)
    assert root.attributes["agentlightning.reward"] == 1.0
    assert json.loads(root.attributes["gen_ai.input.messages"])[1]["parts"][0]["content"] == "What is 6 * 7?"
    assert json.loads(root.attributes["gen_ai.output.messages"])[0]["parts"][-1]["content"] == "It is 42."
    scores = {
        one.attributes["gen_ai.evaluation.name"]: one.attributes["gen_ai.evaluation.score.value"] for one in root.events
    }
    assert scores == {"correct": 1.0, "form": 0.5}
    assert {one.name for one in root.events} == {"gen_ai.evaluation.result"}
    failed = (await trace_of(status="failed"))[0]
    assert (failed.status.status_code, failed.status.description) == ("ERROR", "the agent: ValueError: no")
    assert failed.attributes["error.type"] == "failed"


async def test_neither_token_ids_nor_words_go_along_unless_they_are_asked_for():
    usual, silent, whole = [
        await trace_of(content=content)
        for content in (ExportedContent(), ExportedContent(messages=False), ExportedContent(tokens=True))
    ]
    ids = ("prompt_token_ids", "response_token_ids", "response_logprobs")
    assert not [name for span in usual for name in span.attributes if name.endswith(ids)]
    assert [name for span in whole for name in span.attributes if name.endswith(ids)]
    text = json.dumps([span.attributes for span in silent], default=str)
    assert not any(word in text for word in ("6 * 7", "It is 42", "starting", "You calculate"))
    assert named(silent, "chat policy")[0].attributes["gen_ai.usage.input_tokens"] == 20


async def test_every_name_of_the_conventions_that_is_used_is_in_their_registry():
    own = {
        value for name, value in vars(GenAiAttributes).items() if isinstance(value, str) and value.startswith("gen_ai.")
    }
    assert own - {GenAiAttributes.EVALUATION_EVENT} <= REGISTRY
    used = {
        name for tracer in (OtelTracer, DummyTracer) for span in await trace_of(tracer()) for name in span.attributes
    }
    events = {name for span in await trace_of() for event in span.events for name in event.attributes}
    genai = {name for name in used | events if name.startswith("gen_ai.")}
    assert len(genai) > 15
    assert genai <= REGISTRY - OUTDATED


async def test_a_call_that_a_tracer_of_openai_recorded_loses_the_names_of_before():
    names = {
        "gen_ai.request.type": "chat",
        "gen_ai.system": "OpenAI",
        "gen_ai.request.streaming": False,
        "gen_ai.request.model": "gpt-5",
        "gen_ai.request.max_completion_tokens": 9,
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "Hello",
        "gen_ai.usage.prompt_tokens": 4,
        "gen_ai.usage.completion_tokens": 2,
        "gen_ai.usage.total_tokens": 6,
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "Hi",
        "gen_ai.completion.0.finish_reason": "stop",
    }
    _, found = exported(span_named("openai.chat.completion", names))
    assert found.name == "chat gpt-5"
    assert found.attributes["gen_ai.provider.name"] == "openai"
    assert (found.attributes["gen_ai.usage.input_tokens"], found.attributes["gen_ai.usage.output_tokens"]) == (4, 2)
    assert json.loads(found.attributes["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": "Hi"}]
    assert {name for name in found.attributes if name.startswith("gen_ai.")} <= REGISTRY - OUTDATED


async def test_a_call_in_the_agents_own_trace_refers_to_it():
    traceparent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    spans = await trace_of(OtelTracer(), traceparent=traceparent)
    calls = named(spans, "chat policy")
    assert [(link.context.trace_id, link.context.span_id) for span in calls for link in span.links] == [
        ("ab" * 16, "cd" * 8)
    ] * 2
    assert len({span.trace_id for span in spans}) == 1


async def test_an_operation_that_names_its_agent_is_an_invocation_of_it_and_unreadable_messages_leave_the_call():
    planning = {"agentlightning.operation.name": "planning", "gen_ai.agent.name": "planner"}
    unreadable = {**recorded(ASKED, ANSWER), "gen_ai.input.messages": "{"}
    found = exported(
        span_named("openai.chat.completion", unreadable, 2, 3), span_named("agentlightning.operation", planning, 1, 5)
    )
    (planner,), (chat,) = named(found, "invoke_agent planner"), named(found, "chat policy")
    assert planner.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert chat.parent_id == planner.span_id
    assert chat.attributes["gen_ai.input.messages"] == "[]"


async def test_the_ids_of_a_trace_do_not_change_when_it_is_made_again():
    store = InMemoryLightningStore()
    rollout_id = await two_calls(store, DummyTracer())
    spans = await store.query_spans(rollout_id)
    facts = AttemptFacts(rollout_id, spans[0].attempt_id, agent="a")
    place, first = attempt_trace(facts, spans, ExportedContent())
    again, second = attempt_trace(facts, spans, ExportedContent())
    assert (place, [span.span_id for span in first]) == (again, [span.span_id for span in second])
    _, late = attempt_trace(facts, spans[-1:], ExportedContent(), place)
    assert [(span.trace_id, span.parent_id) for span in late] == [(place.trace_id, place.root_id)]


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ({"role": "user", "content": None}, []),
        ({"role": "user", "content": 3}, [{"type": "text", "content": "3"}]),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://host/a.png"}}]},
            [{"type": "uri", "modality": "image", "uri": "https://host/a.png"}],
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}, 3]},
            [{"type": "tool_call", "name": "f", "arguments": "{"}],
        ),
        ({"role": "user", "parts": [{"type": "text", "content": "mine"}]}, [{"type": "text", "content": "mine"}]),
    ],
    ids=["nothing", "number", "picture", "half-a-call", "parts"],
)
def test_messages_of_any_shape_become_parts(message, parts):
    assert input_messages([message]) == [{"role": message["role"], "parts": parts}]


def test_long_texts_and_pictures_in_the_text_are_cut():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    (message,) = output_messages(
        [{"role": "assistant", "content": [{"type": "text", "text": "x" * 50_000}, picture]}], ()
    )
    told = [part["content"] for part in message["parts"]]
    assert told[0].startswith("x" * LONGEST_TEXT + "… (17,232 more characters")
    assert len(told[1]) < 100
