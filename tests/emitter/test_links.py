"""Links, tags, and the scope of a reward: what spans say about other spans."""

from typing import Any

import pytest

from mini_agentic_rl.emitter import (
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    extract_links_from_attributes,
    extract_tags_from_attributes,
    find_final_reward,
    get_reward_value,
    get_rewards_from_span,
    is_rollout_reward,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
    reward,
)
from mini_agentic_rl.tracer import DummyTracer, OtelTracer, Tracer
from mini_agentic_rl.types import Span


def _span(number: int, **attributes: Any) -> Span:
    return Span.from_attributes(attributes=attributes, sequence_id=number, span_id=f"{number:016x}", trace_id="f" * 32)


def test_links_and_tags_are_written_as_the_wire_names_say() -> None:
    assert make_link_attributes({"gen_ai.response.id": "resp-1", "turn": 2}) == {
        "agentlightning.link.0.key_match": "gen_ai.response.id",
        "agentlightning.link.0.value_match": "resp-1",
        "agentlightning.link.1.key_match": "turn",
        "agentlightning.link.1.value_match": "2",
    }
    assert make_tag_attributes(["hard", "math"]) == {"agentlightning.tag.0": "hard", "agentlightning.tag.1": "math"}
    with pytest.raises(TypeError, match="list of strings"):
        make_tag_attributes("hard")
    with pytest.raises(ValueError, match="plain value"):
        make_link_attributes({"a": ["b"]})


@pytest.mark.parametrize(
    "emitted",
    [
        lambda **more: emit_annotation({"a": 1}, propagate=False, **more),
        lambda **more: emit_message("text", propagate=False, **more),
        lambda **more: emit_object([1], propagate=False, **more),
        lambda **more: emit_exception(ValueError("x"), propagate=False, **more),
        lambda **more: emit_reward(1.0, propagate=False, **more),
    ],
)
def test_every_emitter_takes_links_and_tags(emitted: Any) -> None:
    attributes = emitted(links={"gen_ai.response.id": "resp-1"}, tags=["t"] * 11).attributes
    (link,) = extract_links_from_attributes(attributes)
    assert (link.key_match, link.value_match) == ("gen_ai.response.id", "resp-1")
    assert extract_tags_from_attributes(attributes) == ["t"] * 11


def test_linked_spans_fit_every_link() -> None:
    spans = [_span(1, x="1"), _span(2, x="1", y=2), _span(3, y=2)]

    def linked(links: dict[str, Any]) -> list[int]:
        found = query_linked_spans(spans, extract_links_from_attributes(make_link_attributes(links)))
        return [span.sequence_id for span in found]

    assert linked({"x": "1"}) == [1, 2]
    assert linked({"x": "1", "y": 2}) == [2]
    assert linked({"span_id": spans[2].span_id}) == [3]
    assert linked({"trace_id": "f" * 32, "y": 2}) == [2, 3]
    assert linked({"z": "1"}) == []
    assert linked({}) == [1, 2, 3]


def test_a_reward_of_the_whole_rollout_is_told_from_that_of_a_call() -> None:
    call, whole = emit_reward(0.5, propagate=False), emit_reward({"a": 1.0}, final=True, propagate=False)
    assert (is_rollout_reward(call), is_rollout_reward(whole)) == (False, True)
    assert (get_reward_value(whole), [one.name for one in get_rewards_from_span(whole)]) == (1.0, ["a"])
    assert find_final_reward([whole, call]) == 0.5


@pytest.mark.parametrize("tracer", [OtelTracer(), DummyTracer()])
async def test_a_reward_function_may_return_several_numbers(tracer: Tracer) -> None:
    @reward(primary_key="right", final=True)
    def score(answer: str) -> dict[str, float]:
        return {"length": float(len(answer)), "right": 1.0}

    async with tracer.trace_context():
        assert score("four") == {"length": 4.0, "right": 1.0}
    (span,) = [span for span in tracer.get_last_trace() if get_reward_value(span) is not None]
    assert [(one.name, one.value) for one in get_rewards_from_span(span)] == [("right", 1.0), ("length", 4.0)]
    assert is_rollout_reward(span)
