"""Triplets and fine-tuning rows from spans."""

import json
import logging

import pytest

from mini_agentic_rl.adapter import (
    LlmProxyTraceToTriplet,
    RewardMatchPolicy,
    TracerTraceToTriplet,
    TraceToMessages,
    TraceToTripletBase,
    TrainedCalls,
)
from mini_agentic_rl.semconv import AGL_REWARD
from mini_agentic_rl.semconv import CompletionSpanAttributes as Key
from mini_agentic_rl.types import Span

from .spans import completion, plain, reward

BOTH = pytest.mark.parametrize("adapter", [TracerTraceToTriplet(), LlmProxyTraceToTriplet()])


@BOTH
def test_a_reward_belongs_to_the_last_call_before_it(adapter: TraceToTripletBase) -> None:
    spans = [
        completion(1, [1], [2]),
        completion(2, [1, 2, 3], [4]),
        reward(3, 0.25),
        completion(4, [1, 2, 3, 4, 5], [6]),
        reward(5, 1.0),
    ]
    triplets = adapter(list(reversed(spans)))
    assert [triplet.reward for triplet in triplets] == [None, 0.25, 1.0]
    assert [triplet.response["token_ids"] for triplet in triplets] == [[2], [4], [6]]
    assert [triplet.reward for triplet in adapter([reward(1, 1.0), completion(2, [1], [2])])] == [None]


@BOTH
def test_one_response_seen_twice_is_one_triplet(adapter: TraceToTripletBase) -> None:
    without_tokens = completion(1, [1], [2], response_id="x")
    del without_tokens.attributes[Key.RESPONSE_TOKEN_IDS]
    triplets = adapter([without_tokens, completion(2, [1], [2], response_id="x"), completion(3, [5], [6])])
    assert [triplet.response["token_ids"] for triplet in triplets] == [[2], [6]]


def test_a_triplet_holds_tokens_text_and_request() -> None:
    images = json.dumps([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/1.png"}}]}])
    span = completion(1, [1, 2], [3], response_id="x", **{Key.INPUT_MESSAGES: images, Key.AGENT_NAME: "solver"})
    triplet = TracerTraceToTriplet()([span])[0]
    assert triplet.prompt["token_ids"] == [1, 2]
    assert triplet.prompt["image_urls"] == ["http://x/1.png"]
    assert triplet.response["raw_content"] == [{"role": "assistant", "content": "answer 1"}]
    assert triplet.response["logprobs"] == [-0.5]
    assert (triplet.metadata["response_id"], triplet.metadata["agent_name"]) == ("x", "solver")
    assert triplet.metadata["request"] == {"model": "m"}


def test_agent_match_keeps_the_calls_of_the_nearest_agent() -> None:
    planner = plain(8, "planner", 0.0, 10.0, **{"gen_ai.agent.name": "planner"})
    solver = plain(7, "solver", 2.0, 5.0, **{"gen_ai.agent.name": "solver"})
    calls = [
        completion(1, [1], [2], start_time=1.0, end_time=1.5),
        completion(2, [3], [4], start_time=3.0, end_time=4.0),
        completion(3, [5], [6], start_time=6.0, end_time=7.0),
    ]
    spans = [planner, solver, *calls]
    assert [t.response["token_ids"] for t in TracerTraceToTriplet(agent_match="solver")(spans)] == [[4]]
    assert [t.response["token_ids"] for t in TracerTraceToTriplet(agent_match="planner")(spans)] == [[2], [6]]
    assert [t.metadata["agent_name"] for t in TracerTraceToTriplet()(spans)] == ["planner", "solver", "planner"]
    assert TracerTraceToTriplet(agent_match="solver", repair_hierarchy=False)(spans) == []


def test_a_judges_calls_are_no_part_of_the_agent() -> None:
    judging = plain(4, "agentlightning.operation", 2.0, 3.0, **{"agentlightning.operation.name": AGL_REWARD})
    spans = [
        completion(1, [1], [2], start_time=0.0, end_time=1.0),
        completion(2, [7], [8], start_time=2.2, end_time=2.8),
        judging,
        reward(5, 1.0),
    ]
    triplets = TracerTraceToTriplet()(spans)
    assert [(triplet.response["token_ids"], triplet.reward) for triplet in triplets] == [([2], 1.0)]
    assert len(TracerTraceToTriplet(exclude_llm_call_in_reward=False)(spans)) == 2
    assert [record.output_ids.tolist() for record in TrainedCalls().select(spans).records] == [[2]]
    assert "made while a reward was computed" in str(TrainedCalls().select(spans[1:3]).why_empty)


def test_first_sibling_gives_a_reward_to_a_call_with_the_same_parent() -> None:
    step = plain(6, "step", 0.0, 10.0)
    own = completion(1, [1], [2], parent_id=step.span_id)
    foreign = completion(2, [3], [4])
    spans = [own, foreign, reward(3, 0.5, parent_id=step.span_id), step]
    sibling = TracerTraceToTriplet(repair_hierarchy=False, reward_match=RewardMatchPolicy.FIRST_SIBLING)
    assert [triplet.reward for triplet in sibling(spans)] == [0.5, None]
    occurrence = TracerTraceToTriplet(repair_hierarchy=False)
    assert [triplet.reward for triplet in occurrence(spans)] == [None, 0.5]


def test_a_reward_with_the_number_of_a_call_belongs_to_the_call_before_it() -> None:
    adapter = LlmProxyTraceToTriplet()
    spans = [reward(1, 1.0), completion(2, [1], [2]), reward(2, 2.0), reward(3, 3.5)]
    assert [triplet.reward for triplet in adapter(spans)] == [3.5]
    spans = [completion(1, [1], [2]), completion(2, [1, 2], [3]), reward(2, 2.0), reward(3, 3.5)]
    assert [triplet.reward for triplet in adapter(spans)] == [2.0, 3.5]


def test_calls_without_token_ids_are_left_out_where_that_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    spans = [completion(1, [1], [2]), completion(2, [], []), reward(3, 1.0)]
    assert [triplet.reward for triplet in TracerTraceToTriplet()(spans)] == [None, 1.0]
    assert [triplet.reward for triplet in TracerTraceToTriplet(_skip_empty_token_spans=True)(spans)] == [1.0]
    assert "without token ids" in _why(TracerTraceToTriplet(_skip_empty_token_spans=True), spans[1:], caplog)


def test_spans_whose_parents_form_a_circle_do_not_hang() -> None:
    first, second = completion(1, [1], [2]), completion(2, [3], [4])
    first.parent_id, second.parent_id = second.span_id, first.span_id
    assert len(TracerTraceToTriplet(agent_match="x")([first, second])) == 0


def test_llm_call_match_selects_by_span_name() -> None:
    span = completion(1, [1], [2])
    span.name = "anthropic.messages"
    assert TracerTraceToTriplet()([span]) == []
    assert len(TracerTraceToTriplet(llm_call_match="anthropic")([span])) == 1


def _why(adapter: TraceToTripletBase, spans: list[Span], caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        adapter(spans)
    return caplog.text


def test_what_empties_an_attempt_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    planner = plain(8, "planner", 0.0, 10.0, **{"gen_ai.agent.name": "planner"})
    judging = plain(9, "agentlightning.operation", 2.0, 3.0, **{"agentlightning.operation.name": AGL_REWARD})
    call = completion(1, [1], [2], start_time=2.2, end_time=2.8)
    assert "none of its 1 spans is an LLM call (llm_call_match='openai" in _why(
        TracerTraceToTriplet(), [planner], caplog
    )
    assert "1 of agent 'planner', which agent_match='solver' does not match" in _why(
        TracerTraceToTriplet(agent_match="solver"), [planner, call], caplog
    )
    assert (
        "1 without an agent's name (`with agent(…):` gives calls one), which agent_match='solver' does not match"
        in _why(TracerTraceToTriplet(agent_match="solver"), [call], caplog)
    )
    assert "1 made while a reward was computed" in _why(TracerTraceToTriplet(), [call, judging], caplog)
    assert "rollout URL" in _why(LlmProxyTraceToTriplet(), [planner], caplog)


@BOTH
def test_what_leaves_an_attempt_without_a_reward_is_logged(
    adapter: TraceToTripletBase, caplog: pytest.LogCaptureFixture
) -> None:
    calls = [completion(2, [1], [2]), completion(3, [1, 2], [3]), completion(4, [1, 2, 3], [4])]
    assert "yields no reward: none was emitted" in _why(adapter, [*calls], caplog)
    assert "its 1 rewards were emitted before the first call" in _why(adapter, [reward(1, 0.5), *calls], caplog)
    assert _why(adapter, [*calls, reward(5, 0.5)], caplog) == ""


def test_messages_become_rows_with_their_tools(caplog: pytest.LogCaptureFixture) -> None:
    tools = [{"type": "function", "function": {"name": "calculate"}}]
    broken = completion(3, [1], [2], **{Key.INPUT_MESSAGES: "{not json"})
    spans = [completion(2, [1], [2], **{Key.TOOL_DEFINITIONS: json.dumps(tools)}), completion(1, [1], [2]), broken]
    with caplog.at_level(logging.WARNING):
        rows = TraceToMessages()([*spans, reward(4, 1.0)])
    assert rows == [
        {
            "messages": [
                {"role": "user", "content": "question 1"},
                {"role": "assistant", "content": "answer 1"},
            ],
            "tools": None,
        },
        {
            "messages": [
                {"role": "user", "content": "question 2"},
                {"role": "assistant", "content": "answer 2"},
            ],
            "tools": tools,
        },
    ]
    assert "unreadable messages" in caplog.text
