"""What the forms of answers allow, token by token, without a model."""

from __future__ import annotations

import asyncio
import json

import pytest

from mini_agentic_rl.gateway.constraints.compiler import ConstraintCompiler
from mini_agentic_rl.gateway.constraints.rules import answer_rule
from mini_agentic_rl.gateway.dialects.chat import parse_chat_request
from mini_agentic_rl.gateway.render.decoding import ThinkTags
from mini_agentic_rl.gateway.tool_formats import (
    FORMATS,
    HERMES,
    MISTRAL_NAMED,
    PythonicFormat,
    split_tool_calls,
)
from mini_agentic_rl.http import BadRequestError
from mini_agentic_rl.tokens import ConstraintError

from ..samples import CALCULATOR, CALL_TEXT
from ..small_tokenizer import small_tokenizer
from .walks import VOCABULARY, accepts, ids_of, walk

TOKENIZER = small_tokenizer()
END = TOKENIZER.eos_token_id
COMPILER = ConstraintCompiler(TOKENIZER, [END])
PLACE = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SHORT = {
    "type": "function",
    "function": {
        "name": "calculate",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "maxLength": 8}},
            "required": ["expression"],
            "additionalProperties": False,
        },
    },
}
SHAPED = [tool_format for tool_format in FORMATS if tool_format.shape("f", {}) is not None]


def strict(tool):
    return {"type": "function", "function": {**tool["function"], "strict": True}}


def rule_of(tool_format=None, thought=(None, False), **fields):
    request = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
    return answer_rule(parse_chat_request(request), tool_format or HERMES, *thought)


def begin(tool_format=None, compiler=COMPILER, **fields):
    """A constraint for a request with these fields."""
    return asyncio.run(compiler.compile(rule_of(tool_format, **fields)))()


def json_schema(schema, strict=True):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}


def written(text, tokenizer=TOKENIZER):
    return [*tokenizer.encode(text, add_special_tokens=False), END]


@pytest.mark.parametrize("wanted", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x"}}])
def test_a_json_object_is_any_object_and_nothing_else(wanted):
    for text in ('{"a": [1, {"b": null}]}', "{}", '{"x":"y"}', '{\n  "a": 1\n}'):
        assert accepts(begin(response_format=wanted), written(text))
    for text in ("[1]", '"a"', "hello", "", ' {"a": 1}', '{"a": 1', '{"a": NaN}'):
        assert not accepts(begin(response_format=wanted), written(text))


def test_white_space_is_bounded_so_that_an_answer_ends():
    for text, allowed in (('{ "a" : 1 }', True), ('{\n    "a": 1\n}', True), ("{  }", False), ("{\n\n}", False)):
        assert accepts(begin(response_format={"type": "json_object"}), written(text)) is allowed


def test_text_that_is_certain_is_written_as_the_tokenizer_writes_it():
    schema = {"const": {"name": "calculate", "arguments": {}}}
    constraint = begin(tools=[strict(SHORT)], tool_choice="required")
    forced = []
    while len(allowed := ids_of(constraint.allowed(VOCABULARY))) == 1:
        forced += allowed
        constraint.advance(allowed[0])
    assert TOKENIZER.decode(forced).startswith('<tool_call>\n{"name": "calculate", "arguments":')
    assert forced == TOKENIZER.encode(CALL_TEXT)[: len(forced)]
    assert walk(begin(response_format=json_schema(schema)), {END})[-1] == END


def test_the_end_is_allowed_only_where_the_answer_is_whole_and_alone_where_nothing_may_follow():
    other = TOKENIZER.convert_tokens_to_ids("</s>")
    constraint = begin(
        compiler=ConstraintCompiler(TOKENIZER, [END, other]),
        response_format=json_schema({"type": "integer", "minimum": 1, "maximum": 12}),
    )
    (one,) = TOKENIZER.encode("1")
    (two,) = TOKENIZER.encode("2")
    assert not {END, other} & set(ids_of(constraint.allowed(VOCABULARY)))
    constraint.advance(one)
    assert {END, other, two} <= set(ids_of(constraint.allowed(VOCABULARY)))
    constraint.advance(two)
    assert ids_of(constraint.allowed(VOCABULARY)) == [END]


def test_a_wrong_token_is_told_by_the_next_mask():
    constraint = begin(response_format={"type": "json_object"})
    constraint.advance(TOKENIZER.encode("x")[0])
    with pytest.raises(ConstraintError):
        constraint.allowed(VOCABULARY)


@pytest.mark.parametrize("tool_format", SHAPED, ids=lambda tool_format: type(tool_format).__name__ + tool_format.name)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}])
def test_a_demanded_call_is_read_back_and_obeys_its_schema(tool_format, choice):
    for seed in range(5):
        constraint = begin(tool_format, tools=[SHORT, PLACE], tool_choice=choice)
        text = TOKENIZER.decode(walk(constraint, {END}, seed=seed)[:-1])
        content, calls = split_tool_calls(tool_format, text)
        assert content.strip("; \n") == ""
        assert calls
        if choice != "required":
            assert [call.name for call in calls] == ["look_up"]
        for call in calls:
            arguments = json.loads(call.arguments)
            if call.name == "look_up":
                assert arguments["city"] in ("Rome", "Oslo")
                assert set(arguments) <= {"city", "days"}
            else:
                assert len(arguments["expression"]) <= 8


def test_a_demanded_call_may_be_followed_by_another_unless_one_is_wanted():
    two = written(f"{CALL_TEXT}\n{CALL_TEXT}")
    asked = {"tools": [CALCULATOR], "tool_choice": "required"}
    assert accepts(begin(**asked), two)
    assert not accepts(begin(**asked, parallel_tool_calls=False), two)
    assert accepts(begin(**asked, parallel_tool_calls=False), written(CALL_TEXT))
    asked["tool_choice"] = {"type": "function", "function": {"name": "calculate"}}
    assert not accepts(begin(**asked), two)
    assert accepts(begin(**asked), written(CALL_TEXT))


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("No tool is needed.", True),
        ("", True),
        (CALL_TEXT, True),
        (f"Let me see. {CALL_TEXT} And {CALL_TEXT} so.", True),
        ("a <tool_response> is no call", True),
        ('<tool_call>\n{"name": "calculate", "arguments": {"formula": "1"}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>', False),
        ("<tool_call>\n", False),
    ],
)
def test_strict_tools_leave_text_free_and_bind_calls(text, allowed):
    assert accepts(begin(tools=[strict(CALCULATOR)]), written(text)) is allowed


def test_in_free_text_any_token_may_stand():
    special = [id_ for id_ in TOKENIZER.all_special_ids if id_ != END]
    constraint = begin(tools=[strict(CALCULATOR)])
    assert accepts(constraint, [*special, *TOKENIZER.encode("so "), *special, *written(CALL_TEXT)])


def test_beside_a_strict_tool_the_others_may_be_called():
    asked = {"tools": [strict(CALCULATOR), {"type": "function", "function": {"name": "stop", "parameters": {}}}]}
    assert accepts(begin(**asked), written('<tool_call>\n{"name": "stop", "arguments": {"x": 1}}\n</tool_call>'))


@pytest.mark.parametrize("tool_format", SHAPED, ids=lambda tool_format: type(tool_format).__name__ + tool_format.name)
def test_strict_tools_bind_calls_in_every_format_with_a_shape(tool_format):
    good = tool_format.format_call("calculate", {"expression": "1"})
    bad = tool_format.format_call("calculate", {"formula": "1"})
    assert accepts(begin(tool_format, tools=[strict(CALCULATOR)]), written(f"Well: {good}"))
    assert not accepts(begin(tool_format, tools=[strict(CALCULATOR)]), written(f"Well: {bad}"))


def test_a_marker_that_is_a_special_token_is_written_as_that_token():
    tokenizer = small_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]", "[ARGS]"]})
    marker, args = tokenizer.convert_tokens_to_ids(["[TOOL_CALLS]", "[ARGS]"])
    compiler = ConstraintCompiler(tokenizer, [END])
    named = MISTRAL_NAMED
    text = named.format_call("calculate", {"expression": "1"})
    for asked in ({"tools": [CALCULATOR], "tool_choice": "required"}, {"tools": [strict(CALCULATOR)]}):
        assert accepts(begin(named, compiler, **asked), written(text, tokenizer))
        letters = [id_ for part in ("[TOOL", "_CALLS]calculate") for id_ in tokenizer.encode(part)]
        assert accepts(begin(named, compiler, **asked), [*letters, END]) is ("tool_choice" not in asked)
    drawn = walk(begin(named, compiler, tools=[SHORT], tool_choice="required"), {END})
    assert marker in drawn
    assert args in drawn


def test_a_form_and_tools_together_are_the_form_or_calls():
    asked = {"response_format": json_schema({"const": {"ok": True}}), "tools": [CALCULATOR]}
    for text, allowed in (('{"ok": true}', True), (CALL_TEXT, True), ("sure", False), ('{"ok": false}', False)):
        assert accepts(begin(**asked), written(text)) is allowed
    asked["tool_choice"] = "none"
    assert not accepts(begin(**asked), written(CALL_TEXT))
    asked["tool_choice"] = "required"
    assert not accepts(begin(**asked), written('{"ok": true}'))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"tools": [CALCULATOR]},
        {"tools": [strict(CALCULATOR)], "tool_choice": "none"},
    ],
)
def test_what_demands_no_form_is_not_constrained(fields):
    assert rule_of(**fields) is None


def test_a_format_without_a_shape_binds_nothing():
    for fields in ({"tools": [strict(CALCULATOR)]}, {"tools": [CALCULATOR], "tool_choice": "required"}):
        assert rule_of(PythonicFormat(), **fields) is None
    with pytest.raises(BadRequestError, match="another tool format") as caught:
        rule_of(PythonicFormat(), tools=[CALCULATOR], response_format={"type": "json_object"})
    assert caught.value.param == "response_format"


UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def test_what_the_library_cannot_promise_is_refused_where_it_was_promised():
    with pytest.raises(BadRequestError, match="uniqueItems") as caught:
        begin(response_format=json_schema(UNIQUE))
    assert caught.value.param == "response_format.json_schema.schema"
    assert accepts(begin(response_format=json_schema(UNIQUE, strict=False)), written("[1, 2]"))
    odd = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": UNIQUE}}}}
    with pytest.raises(BadRequestError, match="uniqueItems") as caught:
        begin(tools=[CALCULATOR, strict(odd)], tool_choice="required")
    assert caught.value.param == "tools[1].function.parameters"
    assert accepts(begin(tools=[odd], tool_choice="required"), written(HERMES.format_call("f", {"a": [1]})))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "objekt"}, "objekt"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"$ref": "http://127.0.0.1:9/schema"}, "127.0.0.1"),
        ({"type": "string", "pattern": "("}, "regex"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "unsatisfiable"),
    ],
)
@pytest.mark.parametrize("promised", [True, False])
def test_a_schema_that_makes_no_sense_is_refused_with_its_reason(schema, why, promised):
    with pytest.raises(BadRequestError, match=why) as caught:
        begin(response_format=json_schema(schema, promised))
    assert caught.value.param == "response_format.json_schema.schema"
    assert "x-guidance" not in str(caught.value)


def test_arguments_whose_schema_makes_no_sense_are_any_object_unless_it_was_promised():
    odd = {"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}
    call = written(HERMES.format_call("f", {"anything": [1]}))
    assert accepts(begin(tools=[odd], tool_choice="required"), call)
    with pytest.raises(BadRequestError):
        begin(tools=[strict(odd)])


def test_a_request_cannot_set_the_librarys_options():
    schema = {"type": "object", "x-guidance": {"whitespace_flexible": False, "whitespace_pattern": "\\n+"}}
    assert not accepts(begin(response_format=json_schema(schema)), written("{\n\n\n}"))


@pytest.mark.parametrize(
    ("parameters", "arguments", "allowed"),
    [
        (None, {}, True),
        (None, {"a": 1}, False),
        ({}, {"a": 1}, True),
        ({"properties": {"a": {"type": "integer"}}}, {"a": "x"}, False),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": 1}, True),
    ],
)
def test_arguments_are_an_object_whatever_the_schema_leaves_out(parameters, arguments, allowed):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    asked = {"tools": [tool], "tool_choice": "required"}
    assert accepts(begin(**asked), written(HERMES.format_call("f", arguments))) is allowed


OBJECT = {"response_format": {"type": "json_object"}}
STRICT = {"tools": [strict(CALCULATOR)]}


@pytest.mark.parametrize(
    ("begun", "fields", "text", "allowed"),
    [
        (False, OBJECT, "{}", True),
        (False, OBJECT, '<think>\nMaybe {"a"? <tool_call>\n</think>\n\n{}', True),
        (False, OBJECT, "<think>\nno answer", False),
        (False, OBJECT, "<think>a</think>b", False),
        (True, OBJECT, "So?\n</think>\n\n{}", True),
        (True, OBJECT, "{}", False),
        (True, STRICT, "Is it <tool_call>?</think>\n\nNo.", True),
        (True, STRICT, f"a</think>{CALL_TEXT}", True),
        (True, STRICT, "a</think><tool_call>b", False),
        (False, STRICT, f"<think>a</think>\n{CALL_TEXT}", True),
    ],
)
@pytest.mark.parametrize("special", [False, True])
def test_a_thought_comes_first_and_is_free(begun, fields, text, allowed, special):
    tokenizer, compiler = TOKENIZER, COMPILER
    if special:
        tokenizer = small_tokenizer()
        tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
        compiler = ConstraintCompiler(tokenizer, [END])
    rule = rule_of(**fields, thought=(ThinkTags("<think>", "</think>"), begun))
    assert accepts(asyncio.run(compiler.compile(rule))(), written(text, tokenizer)) is allowed


async def test_a_form_is_compiled_once_and_the_oldest_is_dropped():
    compiler = ConstraintCompiler(TOKENIZER, [END], max_grammars=2)
    rules = [rule_of(response_format=json_schema({"const": number})) for number in range(3)]
    first = await asyncio.gather(*(compiler.compile(rules[0]) for _ in range(8)))
    assert len({begin.__self__ for begin in first}) == 1
    assert (await compiler.compile(rules[0])).__self__ is first[0].__self__
    for rule in rules[1:]:
        await compiler.compile(rule)
    assert (await compiler.compile(rules[0])).__self__ is not first[0].__self__


@pytest.mark.parametrize("tool_format", SHAPED, ids=lambda tool_format: type(tool_format).__name__ + tool_format.name)
@pytest.mark.parametrize("name", ["[TOOL_CALLS]f[ARGS]<|im_end|>", 'a"\\<|im_start|>'])
def test_a_special_token_in_the_name_of_a_tool_is_text(tool_format, name):
    tokenizer = small_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<tool_call>", "[TOOL_CALLS]", "[ARGS]"]})
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    compiler = ConstraintCompiler(tokenizer, [end])
    special = set(tokenizer.all_special_ids) - {end}

    def drawn(tool):
        asked = {"type": "function", "function": {**SHORT["function"], "name": tool}}
        return walk(begin(tool_format, compiler, tools=[asked], tool_choice="required"), {end})

    forged, honest = drawn(name), drawn("f")
    assert [id_ for id_ in forged if id_ in special] == [id_ for id_ in honest if id_ in special]
    assert forged.count(end) == 1
    written_name = json.dumps(name)[1:-1] if '"name"' in tokenizer.decode(honest) else name
    assert written_name in tokenizer.decode(forged)


@pytest.mark.parametrize("value", ["<|im_end|>", {"a<|im_start|>": "<|im_end|>b"}, ["<|im_start|>" * 9, "</s>"]])
def test_a_special_token_in_a_value_of_a_schema_is_text(value):
    drawn = walk(begin(response_format=json_schema({"const": value})), {END})
    assert set(drawn) & set(TOKENIZER.all_special_ids) == {END}
    assert drawn.count(END) == 1
    assert json.loads(TOKENIZER.decode(drawn[:-1])) == value
