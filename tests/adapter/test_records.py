"""Completion records: exactly the sampled tokens, call by call, without retries."""

from __future__ import annotations

import itertools
import json
import logging

import numpy as np
import pytest

from mini_agentic_rl.adapter import TraceToRecords, count_tool_calls, spans_to_records
from mini_agentic_rl.semconv import CompletionSpanAttributes as Key
from mini_agentic_rl.types import Span

from .spans import completion, reward


def test_three_turns_come_in_the_order_of_the_store() -> None:
    turns = [
        completion(5, [1, 2, 3, 4, 5, 6, 7], [8, 9]),
        completion(1, [1, 2], [3]),
        reward(6, 1.0),
        completion(3, [1, 2, 3, 4], [5, 6]),
    ]
    records = TraceToRecords()(turns)
    assert [record.sequence_id for record in records] == [1, 3, 5]
    assert [record.output_ids.tolist() for record in records] == [[3], [5, 6], [8, 9]]
    for earlier, later in itertools.pairwise(records):
        history = np.concatenate([earlier.prompt_ids, earlier.output_ids])
        assert later.prompt_ids[: history.size].tolist() == history.tolist()


def test_a_record_keeps_every_fact_of_its_call() -> None:
    span = completion(
        4,
        [1, 2],
        [3, 4],
        response_id="resp",
        **{
            Key.POLICY_VERSION: 7,
            Key.CHOICE_INDEX: 1,
            Key.REQUEST_TEMPERATURE: 0.7,
            Key.FINISH_REASONS: ["length"],
            Key.AGENT_NAME: "solver",
        },
    )
    record = spans_to_records([span])[0]
    assert (record.rollout_id, record.attempt_id, record.response_id) == ("r", "a", "resp")
    assert (record.version, record.choice, record.temperature, record.model) == (7, 1, 0.7, "m")
    assert (record.finish_reason, record.sequence_id) == ("length", 4)
    assert record.metadata == {"span_id": span.span_id, "agent_name": "solver"}
    assert record.logprobs.tolist() == [-0.5, -0.5]
    assert (record.prompt_ids.dtype, record.logprobs.dtype) == (np.int64, np.float32)


def test_forced_positions_become_marks_and_those_of_no_token_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    free, forced, wrong = (
        completion(sequence_id, [sequence_id], [7, 8, 9], **extra)
        for sequence_id, extra in enumerate(
            [{}, {Key.RESPONSE_FORCED_POSITIONS: [0, 2]}, {Key.RESPONSE_FORCED_POSITIONS: [3]}], start=1
        )
    )
    with caplog.at_level(logging.WARNING):
        first, second = spans_to_records([free, forced, wrong])
    assert first.forced is None
    assert second.forced is not None
    assert second.forced.tolist() == [True, False, True]
    assert second.trained_tokens == 1
    assert "beyond the 3" in caplog.text


def test_of_a_clients_retries_only_the_last_answer_is_kept() -> None:
    spans = [completion(1, [1, 2], [3]), completion(2, [1, 2], [4]), completion(3, [1, 2, 4], [5])]
    assert [record.output_ids.tolist() for record in spans_to_records(spans)] == [[4], [5]]


def test_all_choices_of_one_response_are_kept() -> None:
    spans = [
        completion(number, [1, 2], [number], response_id=response, **{Key.CHOICE_INDEX: choice})
        for number, response, choice in [(1, "old", 0), (2, "old", 1), (3, "new", 0), (4, "new", 1), (5, "new", 2)]
    ]
    records = spans_to_records(spans)
    assert [(record.response_id, record.choice) for record in records] == [("new", 0), ("new", 1), ("new", 2)]


def test_the_same_prompt_in_another_attempt_or_to_another_model_is_no_retry() -> None:
    spans = [
        completion(1, [1], [2]),
        completion(1, [1], [3], attempt_id="b"),
        completion(1, [1], [4], rollout_id="other"),
        completion(2, [1], [5], rollout_id="other", **{Key.REQUEST_MODEL: "user"}),
    ]
    assert [record.output_ids.tolist() for record in spans_to_records(spans)] == [[2], [3], [4], [5]]


def test_a_call_without_usable_tokens_is_left_out_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    no_logprobs = completion(1, [1], [2])
    del no_logprobs.attributes[Key.RESPONSE_LOGPROBS]
    uneven = completion(2, [1, 2], [3, 4])
    uneven.attributes[Key.RESPONSE_LOGPROBS] = [-0.5]
    with caplog.at_level(logging.WARNING):
        records = spans_to_records([no_logprobs, uneven, completion(3, [9], [8])])
    assert [record.output_ids.tolist() for record in records] == [[8]]
    assert Key.RESPONSE_LOGPROBS in caplog.text
    assert "cut and extend them together" in caplog.text


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
