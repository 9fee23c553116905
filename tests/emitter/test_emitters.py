"""Emitters write spans that the readers give back unchanged."""

import math
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
    find_reward_spans,
    get_message_value,
    get_object_value,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
    is_rollout_reward,
    make_link_attributes,
    make_tag_attributes,
    operation,
    query_linked_spans,
    reward,
)
from mini_agentic_rl.semconv import AGL_ANNOTATION, AGL_OPERATION
from mini_agentic_rl.tracer import DummyTracer, OtelTracer, Tracer
from mini_agentic_rl.types import Span, SpanCoreFields


@pytest.fixture(params=[OtelTracer, DummyTracer])
def tracer(request: pytest.FixtureRequest) -> Tracer:
    return request.param()


def _named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


async def test_rewards_come_back_from_recorded_spans(tracer: Tracer) -> None:
    async with tracer.trace_context():
        emit_reward(0.25)
        emit_message("between")
        emit_reward({"length": 0.5, "accuracy": 1}, primary_key="accuracy", attributes={"judge": "exact"})
    spans = tracer.get_last_trace()
    assert [get_reward_value(span) for span in find_reward_spans(spans)] == [0.25, 1.0]
    assert find_final_reward(spans) == 1.0
    last = _named(spans, AGL_ANNOTATION)[-1]
    assert [(dimension.name, dimension.value) for dimension in get_rewards_from_span(last)] == [
        ("accuracy", 1.0),
        ("length", 0.5),
    ]
    assert last.attributes["judge"] == "exact"
    assert {span.status.status_code for span in _named(spans, AGL_ANNOTATION)} == {"OK"}


def _generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        *(
            (lambda value=value: emit_reward(value, propagate=False), ValueError, "must be finite")
            for value in (math.nan, -math.inf)
        ),
        (lambda: emit_reward({"a": math.nan}, propagate=False), ValueError, "must be finite"),
        *(
            (lambda value=value: emit_reward(value, propagate=False), TypeError, "must be a number")
            for value in ("1.0", None)
        ),
        (lambda: emit_reward({"a": "1.0"}, propagate=False), ValueError, "'a' must be a number"),
        (lambda: emit_reward({"a": 1.0, "b": 2.0}, propagate=False), ValueError, "primary_key"),
        (lambda: emit_reward({"a": 1.0}, primary_key="c", propagate=False), ValueError, "primary_key"),
        (lambda: emit_object(object(), propagate=False), RuntimeError, "JSON"),
        (lambda: emit_message(3, propagate=False), TypeError, "emit_object"),
        (lambda: operation(_generator), TypeError, "_generator"),
        (lambda: operation(name="x", **{"agentlightning.operation.name": "y"}), ValueError, "named twice"),
        (lambda: operation("x"), ValueError, "name="),
        (lambda: make_tag_attributes("hard"), TypeError, "list of strings"),
        (lambda: make_link_attributes({"a": ["b"]}), ValueError, "plain value"),
        (lambda: emit_reward(1.0), RuntimeError, "propagate=False"),  # there is no tracer
        (lambda: operation(name="x").__enter__(), RuntimeError, "propagate=False"),
    ],
)
def test_what_cannot_be_emitted_is_refused(call: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        call()


def test_a_span_without_a_reward_is_no_reward_of_zero() -> None:
    span = emit_annotation({"a": 1}, propagate=False)
    assert get_reward_value(span) is None
    assert not is_reward_span(span)
    assert find_final_reward([span]) is None
    for output in ('{"type": "reward", "value": null}', '{"type": "answer", "value": 1}', "reward", "[1"):
        assert get_reward_value(SpanCoreFields(name="x.task", attributes={"agentops.task.output": output})) is None


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("agentlightning.annotation", {"reward": 0.5}),
        ("agentlightning.reward", {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5}),
        ("score.task", {"agentops.task.output": '{"type": "reward", "value": 0.5}'}),
        ("score.operation", {"agentops.entity.output": {"type": "reward", "value": 0.5}}),
    ],
)
def test_rewards_of_older_and_of_other_traces_are_read(name: str, attributes: dict[str, Any]) -> None:
    span = SpanCoreFields(name=name, attributes=attributes)
    assert is_reward_span(span)
    assert find_final_reward([span]) == 0.5


def test_objects_come_back_equal() -> None:
    for value in ("text", "", 3, -0.5, False, b"\x00\xff", {"a": [1, {"b": None}]}, None):
        back = get_object_value(emit_object(value, propagate=False))
        assert (back, type(back)) == (value, type(value))
    assert get_message_value(emit_message("hé", propagate=False)) == "hé"


@pytest.mark.parametrize("attributes", [{"json": "{"}, {"literal": "1", "type": "complex"}])
def test_an_object_that_cannot_be_read_is_told(attributes: dict[str, str]) -> None:
    named = {f"agentlightning.object.{name}": value for name, value in attributes.items()}
    with pytest.raises(RuntimeError, match=r"of span|holds a literal"):
        get_object_value(SpanCoreFields(name="agentlightning.object", attributes=named))


async def test_exceptions_keep_type_message_and_stack(tracer: Tracer) -> None:
    async with tracer.trace_context():
        try:
            raise LookupError("nothing there")
        except LookupError as error:
            emit_exception(error)
    span = _named(tracer.get_last_trace(), "agentlightning.exception")[0]
    assert span.attributes["exception.type"] == "LookupError"
    assert span.attributes["exception.message"] == "nothing there"
    assert "test_emitters" in span.attributes["exception.stacktrace"]
    assert (span.status.status_code, span.status.description) == ("ERROR", "LookupError: nothing there")


async def test_annotations_flatten_and_survive_the_sdk(tracer: Tracer) -> None:
    async with tracer.trace_context():
        emit_annotation({"a": {"b": 1, "c": [1, 2]}, "d": [{"e": "x"}], "mixed": [1, "x"], "none": None})
    span = _named(tracer.get_last_trace(), "agentlightning.annotation")[0]
    assert span.attributes == {"a.b": 1, "a.c": [1, 2], "d.0.e": "x", "mixed": '[1, "x"]'}


async def test_operations_record_arguments_and_results(tracer: Tracer) -> None:
    @operation
    def add(a: int, b: int = 2) -> int:
        return a + b

    @operation(name="search", kind="tool")
    async def search(query: str) -> list[str]:
        emit_message("searching")
        return [query]

    async with tracer.trace_context():
        assert add(1) == 3
        assert await search("x") == ["x"]
        with operation(name="block") as op:
            op.set_input(1, depth=2)
            op.set_output({"found": True})
            assert op.span().attributes["agentlightning.operation.output.found"] is True
        with pytest.raises(ValueError, match="boom"), operation(name="bad"):
            raise ValueError("boom")
    spans = tracer.get_last_trace()
    by_name = {span.attributes["agentlightning.operation.name"]: span for span in _named(spans, AGL_OPERATION)}
    assert by_name["add"].attributes["agentlightning.operation.input.a"] == 1
    assert by_name["add"].attributes["agentlightning.operation.output"] == 3
    assert by_name["search"].attributes["kind"] == "tool"
    assert by_name["search"].attributes["agentlightning.operation.output"] == ["x"]
    assert by_name["block"].attributes["agentlightning.operation.input.args.0"] == 1
    assert by_name["block"].attributes["agentlightning.operation.input.depth"] == 2
    assert _named(spans, "agentlightning.message")[0].parent_id == by_name["search"].span_id
    reason = "ValueError: boom" if isinstance(tracer, OtelTracer) else "boom"
    assert (by_name["bad"].status.status_code, by_name["bad"].status.description) == ("ERROR", reason)


def test_an_operation_that_is_not_propagated_needs_no_tracer() -> None:
    with operation(name="local", propagate=False) as op:
        op.set_output(3)
    assert op.span().attributes["agentlightning.operation.output"] == 3
    assert op.span().status.status_code == "OK"
    with pytest.raises(KeyError), operation(name="local", propagate=False) as op:
        raise KeyError("gone")
    assert (op.span().status.status_code, op.span().status.description) == ("ERROR", "'gone'")
    assert op.span().attributes["exception.type"] == "KeyError"


def test_tags_and_links_of_an_operation_are_attributes_as_well() -> None:
    with operation(name="x", tags=["hard", "math"], links={"span_id": "1", "turn": 2}, propagate=False) as op:
        pass
    assert op.span().attributes == {
        "agentlightning.operation.name": "x",
        "tags": ["hard", "math"],
        "links.span_id": "1",
        "links.turn": 2,
        "agentlightning.tag.0": "hard",
        "agentlightning.tag.1": "math",
        "agentlightning.link.0.key_match": "span_id",
        "agentlightning.link.0.value_match": "1",
        "agentlightning.link.1.key_match": "turn",
        "agentlightning.link.1.value_match": "2",
    }


async def test_a_reward_function_emits_what_it_returns(tracer: Tracer) -> None:
    @reward
    def score(answer: str) -> float:
        return float(len(answer))

    @reward
    async def nothing() -> None:
        return None

    @reward(primary_key="right", final=True)
    def several(answer: str) -> dict[str, float]:
        return {"length": float(len(answer)), "right": 1.0}

    async with tracer.trace_context():
        assert score("four") == 4.0
        assert await nothing() is None
        assert several("four") == {"length": 4.0, "right": 1.0}
    first, second = find_reward_spans(tracer.get_last_trace())
    assert [get_reward_value(first), get_reward_value(second)] == [4.0, 1.0]
    assert [(one.name, one.value) for one in get_rewards_from_span(second)] == [("right", 1.0), ("length", 4.0)]
    assert [is_rollout_reward(first), is_rollout_reward(second)] == [False, True]
    assert find_final_reward([second, first]) == 4.0


async def test_more_rewards_than_the_sdks_attribute_limit_are_kept() -> None:
    tracer = OtelTracer()
    async with tracer.trace_context():
        emit_reward({f"r{index}": float(index) for index in range(200)}, primary_key="r0")
    assert len(get_rewards_from_span(_named(tracer.get_last_trace(), AGL_ANNOTATION)[0])) == 200


def _span(number: int, **attributes: Any) -> Span:
    return Span.from_attributes(attributes=attributes, sequence_id=number, span_id=f"{number:016x}", trace_id="f" * 32)


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
