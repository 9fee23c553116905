"""Completion records: exactly the sampled tokens, call by call, without retries; and which calls are trained."""

from __future__ import annotations

import itertools
import json
import logging
from typing import Any

import numpy as np
import pytest

from mini_agentic_rl.adapter import TraceToRecords, TraceToTokenTree, TrainedCalls, count_tool_calls, spans_to_records
from mini_agentic_rl.emitter import emit_annotation
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.semconv import CompletionSpanAttributes as Key
from mini_agentic_rl.types import Span

from .spans import completion, plain, reward


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
    choices = [
        completion(number, [1, 2], [number], response_id=response, **{Key.CHOICE_INDEX: choice})
        for number, response, choice in [(1, "old", 0), (2, "old", 1), (3, "new", 0), (4, "new", 1), (5, "new", 2)]
    ]
    kept = [(record.response_id, record.choice) for record in spans_to_records(choices)]
    assert kept == [("new", 0), ("new", 1), ("new", 2)]
    no_retries = [
        completion(1, [1], [2]),
        completion(1, [1], [3], attempt_id="b"),
        completion(1, [1], [4], rollout_id="other"),
        completion(2, [1], [5], rollout_id="other", **{Key.REQUEST_MODEL: "user"}),
        completion(3, [1], [6], rollout_id="other", **{Key.AGENT_NAME: "planner"}),
    ]
    assert [record.output_ids.tolist() for record in spans_to_records(no_retries)] == [[2], [3], [4], [5], [6]]


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
    attributes |= {"gen_ai.tool.definitions": TOOLS} if tools else {}
    return plain(1, "openai.chat.completion", 1.0, 2.0, **attributes)


@pytest.mark.parametrize("compact", [True, False])
def test_each_answer_that_calls_a_tool_counts(compact):
    said = {"role": "assistant", "content": "2"}
    assert count_tool_calls([call(CALL, compact=compact), call(said), call(CALL, compact=compact)]) == 2
    quoted = {"role": "assistant", "content": json.dumps(CALL)}
    empty = {"role": "assistant", "content": "2", "tool_calls": []}
    assert count_tool_calls([call(quoted), call(empty)]) == 0
    # without tools there is no number
    assert count_tool_calls([call(CALL, tools=False)]) is None
    assert (
        count_tool_calls([plain(1, "agentlightning.annotation", 1.0, 2.0, **{"gen_ai.tool.definitions": TOOLS})])
        is None
    )


def _turns() -> list[Span]:
    """Three calls of a solver, each followed by one of a critic that a span of its own encloses."""
    spans: list[Span] = []
    context = [1]
    for turn in range(3):
        solver = completion(3 * turn + 1, list(context), [10 + turn], start_time=10.0 * turn, end_time=10.0 * turn + 1)
        solver.attributes[Key.AGENT_NAME] = "solver"
        critic = completion(3 * turn + 2, [9, turn], [20 + turn], start_time=10.0 * turn + 3, end_time=10.0 * turn + 4)
        around = plain(
            3 * turn + 3, "critique", 10.0 * turn + 2, 10.0 * turn + 5, **{"gen_ai.agent.name": "the critic"}
        )
        spans += [solver, critic, around]
        context += [10 + turn, 5]
    return spans


def _outputs(selection: Any) -> list[int]:
    return [record.output_ids.tolist()[0] for record in selection.records]


def test_without_a_condition_every_call_is_trained_under_its_agents_name() -> None:
    selection = TrainedCalls().select(_turns())
    assert _outputs(selection) == [10, 20, 11, 21, 12, 22]
    assert [record.metadata["agent_name"] for record in selection.records] == ["solver", "the critic"] * 3
    assert selection.left_out == {}
    assert selection.why_empty is None


def test_trained_agents_and_agent_match_must_both_be_found_in_the_name() -> None:
    assert _outputs(TrainedCalls(agents={"trained_agents": "sol"}).select(_turns())) == [10, 11, 12]
    assert _outputs(TrainedCalls(agents={"trained_agents": "."}).select(_turns())) == [10, 20, 11, 21, 12, 22]
    nothing = TrainedCalls(agents={"trained_agents": "sol", "agent_match": "critic"}).select(_turns())
    assert nothing.records == []
    assert sum(nothing.left_out.values()) == 6
    assert nothing.why_empty == (
        "none of its LLM calls is trained: they are of agent 'solver', which agent_match='critic' does not match; "
        "of agent 'the critic', which trained_agents='sol' does not match"
    )
    nameless = TrainedCalls(agents={"trained_agents": "solver"}).select([completion(1, [1], [2])])
    assert "without an agent's name (`with agent(…):` gives calls one), which trained_agents='solver'" in str(
        nameless.why_empty
    )
    with pytest.raises(UserError, match=r"trained_agents: '\[' is no regular expression"):
        TrainedCalls(agents={"trained_agents": "["})


def test_a_mark_in_the_spans_or_beside_them_trains_the_marked_agent_alone() -> None:
    mark = Span.from_core_fields(
        emit_annotation({"agentlightning.trainable_agent": "the critic"}, propagate=False),
        rollout_id="r",
        attempt_id="a",
        sequence_id=99,
    )
    assert _outputs(TrainedCalls().select([*_turns(), mark])) == [20, 21, 22]
    assert _outputs(TrainedCalls().select(_turns(), marked=["solver"])) == [10, 11, 12]
    assert _outputs(TrainedCalls().select([*_turns(), mark], marked=["solver"])) == [10, 20, 11, 21, 12, 22]
    nobody = TrainedCalls().select(_turns(), marked=["planner"])
    assert "of agent 'solver', which is not marked as trainable (marked: planner)" in str(nobody.why_empty)


def test_calls_to_another_model_are_not_trained() -> None:
    fixed = completion(2, [1, 2], [3], **{Key.REQUEST_MODEL: "judge-base"})
    spans = [completion(1, [1], [2]), fixed, completion(3, [1, 2, 3], [4]), completion(4, [1, 2, 3, 4], [5])]
    selection = TrainedCalls(models={"m"}).select(spans)
    assert _outputs(selection) == [2, 4, 5]
    assert selection.left_out == {"to model 'judge-base', which is not trained": 1}
    assert selection.why_empty is None
    assert "to model 'm'" in str(TrainedCalls(models={"other"}).select(spans).why_empty)


def test_calls_without_tokens_and_no_calls_at_all_are_told_apart() -> None:
    without = completion(1, [1], [2])
    del without.attributes[Key.RESPONSE_TOKEN_IDS]
    assert "without the token ids" in str(TrainedCalls().select([without]).why_empty)
    assert TrainedCalls().select([reward(1, 1.0)]).why_empty is None


def test_attempts_share_one_tree_and_stay_apart_in_it() -> None:
    spans = [
        completion(1, [1, 2, 3], [4, 5]),
        completion(2, [1, 2, 3, 4, 5, 6], [7]),
        completion(3, [1, 2, 3, 4, 5, 6, 7], [8]),
        completion(1, [1, 2, 3], [9], rollout_id="other"),
        completion(2, [1, 2, 3], [4, 4], rollout_id="third", **{Key.REQUEST_MODEL: "fixed"}),
    ]
    tree = TraceToTokenTree(TrainedCalls(models={"m"}))(spans)
    assert [sampled.trajectory for sampled in tree.sampled] == [0, 0, 0, 1]
    assert tree.token_count == 9
    assert TraceToTokenTree()(spans).token_count == 10
