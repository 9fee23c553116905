"""Which calls of a rollout are trained, and what is said of the others."""

from typing import Any

import pytest

from mini_agentic_rl.adapter import TraceToTokenTree, TrainedCalls
from mini_agentic_rl.emitter import emit_annotation
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.semconv import CompletionSpanAttributes as Key
from mini_agentic_rl.types import Span

from .spans import completion, plain, reward


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


def test_a_call_without_an_agents_name_is_said_to_have_none() -> None:
    selection = TrainedCalls(agents={"trained_agents": "solver"}).select([completion(1, [1], [2])])
    assert "without an agent's name (`with agent(…):` gives calls one), which trained_agents='solver'" in str(
        selection.why_empty
    )


def test_a_pattern_that_is_no_regular_expression_names_its_setting() -> None:
    with pytest.raises(UserError, match=r"trained_agents: '\[' is no regular expression"):
        TrainedCalls(agents={"trained_agents": "["})


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
