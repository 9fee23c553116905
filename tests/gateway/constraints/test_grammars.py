"""What the forms of answers allow, token by token, without a model."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mini_agentic_rl.gateway.constraints.compiler import ConstraintCompiler
from mini_agentic_rl.gateway.constraints.grammar import Vocabulary, compile_grammar
from mini_agentic_rl.gateway.constraints.rules import GbnfError, lark_of
from mini_agentic_rl.gateway.render.decoding import ThinkTags
from mini_agentic_rl.gateway.tool_formats import (
    DEEPSEEK_FENCED,
    HERMES,
    KIMI,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    PythonicFormat,
    split_tool_calls,
)
from mini_agentic_rl.http import BadRequestError
from mini_agentic_rl.tokens import ConstraintError

from ..samples import CALCULATOR, CALL_TEXT
from ..small_tokenizer import small_tokenizer
from .forms import (
    COMPILER,
    END,
    PLACE,
    SHORT,
    TOKENIZER,
    VOCABULARY,
    accepts,
    begin,
    function,
    ids_of,
    json_schema,
    rule_of,
    strict,
    walk,
    written,
)

OBJECT = {"response_format": {"type": "json_object"}}
REQUIRED = {"tools": [CALCULATOR], "tool_choice": "required"}
STRICT = {"tools": [strict(CALCULATOR)]}
SHAPED = [HERMES, MISTRAL, MISTRAL_NAMED, LLAMA3, KIMI, DEEPSEEK_FENCED]
shaped = pytest.mark.parametrize("tool_format", SHAPED, ids=lambda tool_format: tool_format.forced_prefix("f"))


@pytest.mark.parametrize("wanted", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x"}}])
def test_a_json_object_is_any_object_and_nothing_else(wanted):
    good = ('{"a": [1, {"b": null}]}', "{}", '{"x":"y"}', '{\n  "a": 1\n}', '{ "a" : 1 }')
    bad = ("[1]", '"a"', "hello", "", ' {"a": 1}', '{"a": 1', '{"a": NaN}', "{  }", "{\n\n}")
    constraint = asyncio.run(COMPILER.compile(rule_of(response_format=wanted)))
    assert [text for text in (*good, *bad) if accepts(constraint(), written(text))] == [*good]


def test_text_that_is_certain_is_written_as_the_tokenizer_writes_it():
    constraint = begin(tools=[strict(SHORT)], tool_choice="required")
    forced = []
    while len(allowed := ids_of(constraint.allowed(VOCABULARY))) == 1:
        forced += allowed
        constraint.advance(allowed[0])
    assert TOKENIZER.decode(forced).startswith('<tool_call>\n{"name": "calculate", "arguments":')
    assert forced == TOKENIZER.encode(CALL_TEXT)[: len(forced)]


def test_the_end_is_allowed_only_where_the_answer_is_whole_and_alone_where_nothing_may_follow():
    other = TOKENIZER.convert_tokens_to_ids("</s>")
    beyond = len(TOKENIZER) + 40  # a model may have more tokens than its tokenizer
    constraint = begin(
        compiler=ConstraintCompiler(TOKENIZER, [END, other, beyond]),
        response_format=json_schema({"type": "integer", "minimum": 1, "maximum": 12}),
    )
    (one,) = TOKENIZER.encode("1")
    (two,) = TOKENIZER.encode("2")
    assert not {END, other} & set(ids_of(constraint.allowed(VOCABULARY)))
    constraint.advance(one)
    assert {END, other, two} <= set(ids_of(constraint.allowed(VOCABULARY)))
    constraint.advance(two)
    assert ids_of(constraint.allowed(VOCABULARY)) == [END]
    constraint.advance(TOKENIZER.encode("x")[0])
    with pytest.raises(ConstraintError):
        constraint.allowed(VOCABULARY)


@shaped
def test_a_demanded_call_is_read_back_and_obeys_its_schema(tool_format):
    for seed, choice in enumerate(("required", "required", {"type": "function", "function": {"name": "look_up"}})):
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
    assert accepts(begin(**REQUIRED), two)
    assert not accepts(begin(**REQUIRED, parallel_tool_calls=False), two)
    assert accepts(begin(**REQUIRED, parallel_tool_calls=False), written(CALL_TEXT))
    named = REQUIRED | {"tool_choice": {"type": "function", "function": {"name": "calculate"}}}
    assert not accepts(begin(**named), two)
    assert accepts(begin(**named), written(CALL_TEXT))


def test_strict_tools_leave_text_free_and_bind_calls():
    good = ("No tool is needed.", "", CALL_TEXT, f"Let me see. {CALL_TEXT} And {CALL_TEXT} so.")
    good = (*good, "a <tool_response> is no call")
    bad = (
        '<tool_call>\n{"name": "calculate", "arguments": {"formula": "1"}}\n</tool_call>',
        '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>',
        "<tool_call>\n",
    )
    constraint = asyncio.run(COMPILER.compile(rule_of(**STRICT)))
    assert [text for text in (*good, *bad) if accepts(constraint(), written(text))] == [*good]
    special = [id_ for id_ in TOKENIZER.all_special_ids if id_ != END]
    assert accepts(constraint(), [*special, *TOKENIZER.encode("so "), *special, *written(CALL_TEXT)])
    beside = {"tools": [strict(CALCULATOR), function({}, "stop")]}
    assert accepts(begin(**beside), written('<tool_call>\n{"name": "stop", "arguments": {"x": 1}}\n</tool_call>'))


@shaped
def test_strict_tools_bind_calls_in_every_format_with_a_shape(tool_format):
    good = tool_format.format_call("calculate", {"expression": "1"})
    bad = tool_format.format_call("calculate", {"formula": "1"})
    assert accepts(begin(tool_format, **STRICT), written(f"Well: {good}"))
    assert not accepts(begin(tool_format, **STRICT), written(f"Well: {bad}"))


def test_a_marker_that_is_a_special_token_is_written_as_that_token():
    tokenizer = small_tokenizer(special=["[TOOL_CALLS]", "[ARGS]"])
    marker, args = tokenizer.convert_tokens_to_ids(["[TOOL_CALLS]", "[ARGS]"])
    compiler = ConstraintCompiler(tokenizer, [END])
    text = MISTRAL_NAMED.format_call("calculate", {"expression": "1"})
    for asked in (REQUIRED, STRICT):
        assert accepts(begin(MISTRAL_NAMED, compiler, **asked), written(text, tokenizer))
        letters = [id_ for part in ("[TOOL", "_CALLS]calculate") for id_ in tokenizer.encode(part)]
        assert accepts(begin(MISTRAL_NAMED, compiler, **asked), [*letters, END]) is (asked is STRICT)
    drawn = walk(begin(MISTRAL_NAMED, compiler, tools=[SHORT], tool_choice="required"), {END})
    assert {marker, args} <= set(drawn)


def test_a_form_and_tools_together_are_the_form_or_calls():
    asked = {"response_format": json_schema({"const": {"ok": True}}), "tools": [CALCULATOR]}
    for text, allowed in (('{"ok": true}', True), (CALL_TEXT, True), ("sure", False), ('{"ok": false}', False)):
        assert accepts(begin(**asked), written(text)) is allowed
    assert not accepts(begin(**asked, tool_choice="none"), written(CALL_TEXT))
    assert not accepts(begin(**asked, tool_choice="required"), written('{"ok": true}'))


def test_requests_that_demand_no_form_and_formats_without_a_shape_are_not_constrained():
    for fields in (
        {},
        {"response_format": {"type": "text"}},
        {"tools": [CALCULATOR]},
        {**STRICT, "tool_choice": "none"},
    ):
        assert rule_of(**fields) is None
    for fields in (STRICT, REQUIRED):
        assert rule_of(PythonicFormat(), **fields) is None
    with pytest.raises(BadRequestError, match="another tool format") as caught:
        rule_of(PythonicFormat(), tools=[CALCULATOR], **OBJECT)
    assert caught.value.param == "response_format"


UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def test_schemas_that_the_library_cannot_enforce_are_refused_only_if_they_are_strict():
    with pytest.raises(BadRequestError, match="uniqueItems") as caught:
        begin(response_format=json_schema(UNIQUE))
    assert caught.value.param == "response_format.json_schema.schema"
    assert accepts(begin(response_format=json_schema(UNIQUE, strict=False)), written("[1, 2]"))
    odd = function({"properties": {"a": UNIQUE}})
    with pytest.raises(BadRequestError, match="uniqueItems") as caught:
        begin(tools=[CALCULATOR, strict(odd)], tool_choice="required")
    assert caught.value.param == "tools[1].function.parameters"
    assert accepts(begin(tools=[odd], tool_choice="required"), written(HERMES.format_call("f", {"a": [1]})))
    invalid = function({"type": "objekt"})
    call = written(HERMES.format_call("f", {"anything": [1]}))
    assert accepts(begin(tools=[invalid], tool_choice="required"), call)
    with pytest.raises(BadRequestError):
        begin(tools=[strict(invalid)])


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
def test_an_invalid_schema_is_refused_with_its_reason(schema, why):
    for promised in (True, False):
        with pytest.raises(BadRequestError, match=why) as caught:
            begin(response_format=json_schema(schema, promised))
        assert caught.value.param == "response_format.json_schema.schema"
        assert "x-guidance" not in str(caught.value)


@pytest.mark.parametrize(
    "fields", [{"response_format": json_schema({"$ref": "#"}, strict=False)}, {"guided_regex": r"[^\s\S]"}]
)
def test_a_form_that_no_answer_has_is_refused_as_such(fields):
    with pytest.raises(BadRequestError, match="no answer has this form"):
        begin(**fields)


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
    asked = {"tools": [function(parameters)], "tool_choice": "required"}
    assert accepts(begin(**asked), written(HERMES.format_call("f", arguments))) is allowed


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
def test_a_thought_comes_first_and_is_free(begun, fields, text, allowed):
    with_tags = small_tokenizer(special=["<think>", "</think>"])
    for tokenizer, compiler in ((TOKENIZER, COMPILER), (with_tags, ConstraintCompiler(with_tags, [END]))):
        rule = rule_of(**fields, thought=(ThinkTags("<think>", "</think>"), begun))
        assert accepts(asyncio.run(compiler.compile(rule))(), written(text, tokenizer)) is allowed


def test_the_digest_of_a_rule_which_the_event_loop_makes_walks_through_no_schema():
    schema = {"type": "object", "properties": {"a": NUMBER}, "examples": [[]] * 1000}
    rule = rule_of(response_format=json_schema(schema), tools=[strict(SHORT)])
    values = [rule.value, *(call.arguments for call in rule.calls)]
    assert len(values) == 2
    assert all(isinstance(value.schema, str) for value in values)


async def test_a_form_is_compiled_once_and_the_oldest_is_dropped(monkeypatch):
    monkeypatch.setattr("mini_agentic_rl.gateway.constraints.compiler.MAX_GRAMMARS", 2)
    compiler = ConstraintCompiler(TOKENIZER, [END])
    rules = [rule_of(response_format=json_schema({"const": number})) for number in range(3)]
    first = await asyncio.gather(*(compiler.compile(rules[0]) for _ in range(8)))
    assert len({begin.__self__ for begin in first}) == 1
    assert (await compiler.compile(rules[0])).__self__ is first[0].__self__
    for rule in rules[1:]:
        await compiler.compile(rule)
    assert (await compiler.compile(rules[0])).__self__ is not first[0].__self__


@pytest.mark.parametrize("tool_format", [HERMES, MISTRAL_NAMED])
def test_a_special_token_in_the_name_of_a_tool_is_text(tool_format):
    tokenizer = small_tokenizer(special=["<tool_call>", "[TOOL_CALLS]", "[ARGS]"])
    compiler = ConstraintCompiler(tokenizer, [END])
    special = set(tokenizer.all_special_ids) - {END}

    def drawn(name):
        asked = {"type": "function", "function": {**SHORT["function"], "name": name}}
        return walk(begin(tool_format, compiler, tools=[asked], tool_choice="required"), {END})

    honest = drawn("f")
    for name in ("[TOOL_CALLS]f[ARGS]<|im_end|>", 'a"\\<|im_start|>'):
        forged = drawn(name)
        assert [id_ for id_ in forged if id_ in special] == [id_ for id_ in honest if id_ in special]
        assert forged.count(END) == 1
        written_name = json.dumps(name)[1:-1] if '"name"' in tokenizer.decode(honest) else name
        assert written_name in tokenizer.decode(forged)


@pytest.mark.parametrize("value", ["<|im_end|>", {"a<|im_start|>": "<|im_end|>b"}, ["<|im_start|>" * 9, "</s>"]])
def test_a_special_token_in_a_value_of_a_schema_is_text(value):
    drawn = walk(begin(response_format=json_schema({"const": value})), {END})
    assert set(drawn) & set(TOKENIZER.all_special_ids) == {END}
    assert drawn.count(END) == 1
    assert json.loads(TOKENIZER.decode(drawn[:-1])) == value


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}}
GBNF = 'root ::= "SELECT " col\ncol ::= "a" | "b" | [0-9]\n'
SPELLINGS = {
    "choice": (["red", "green"], ["guided_choice"], []),
    "regex": ("[a-c]{2}", ["guided_regex", "regex"], []),
    "json": (NUMBER, ["guided_json", "json_schema"], [{"type": "json_object", "schema": NUMBER}]),
    "grammar": (GBNF, ["guided_grammar", "grammar", "ebnf"], []),
}
"""The fields of other servers for each kind of form."""


@pytest.mark.parametrize("kind", SPELLINGS)
def test_every_servers_field_for_a_form_is_the_same_form(kind):
    value, names, formats = SPELLINGS[kind]
    expected = rule_of(structured_outputs={kind: value})

    def content(rule):
        return None if rule is None else (rule.value and rule.value.schema, rule.text and rule.text.grammar)

    assert content(expected) is not None
    for name in names:
        assert content(rule_of(**{name: value})) == content(expected)
    for response_format in formats:
        assert content(rule_of(response_format=response_format)) == content(expected)
    if kind == "json":
        assert content(rule_of(guided_json=json.dumps(value))) == content(expected)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a"], "regex": "b"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": "no json"}}, "structured_outputs.json"),
        ({"guided_choice": "red"}, "guided_choice"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"grammar": "root ::= missing"}, "grammar"),
        ({"guided_json": NUMBER, **OBJECT}, "guided_json"),
        ({"response_format": {"type": "text", "schema": NUMBER}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": {"type": "nonsense"}}}, "response_format"),
        ({"response_format": {"type": "grammar", "grammar": GBNF}}, "response_format"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_form_that_cannot_be_kept_is_refused_and_named(asked, param):
    with pytest.raises(BadRequestError) as caught:
        begin(**asked)
    assert caught.value.param.startswith(param)


JSON = r"""root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
SUM = 'root ::= expr\nexpr ::= term ("+" expr)?\nterm ::= [0-9]+ | "(" expr ")"\n'


@pytest.mark.parametrize(
    ("grammar", "allowed", "refused"),
    [
        ('root ::= "S " col # c\ncol ::= "a" |\n  "b" | [0-9]+', ["S 12", "S b"], ["S ", "S c"]),
        (JSON, ['{"a": [1, 2.5, "x\\n"], "b": {"c": null}}', "{}"], ['{"a"', "[1]"]),
        (SUM, ["1+(22+3)"], ["1+", "()"]),
        ("root ::= [^/&~\\[\\]]+ .", ["abc.", "abc\n"], ["a/bx"]),
        ('root ::= "fox" | word\nword ::= [a-z]+ "x"', ["fox", "foxx", "forx"], ["for"]),
        ('my-Root ::= "a"\nroot ::= my-Root{2,3} "\\u00e9\\x41\\n"', ["aaéA\n", "aaaéA\n"], ["aéA\n"]),
    ],
)
def test_a_grammar_in_gbnf_allows_what_it_describes(grammar, allowed, refused):
    vocabulary = Vocabulary(TOKENIZER, [END])
    begun = compile_grammar(lark_of(grammar), vocabulary.tokens)

    def allows(text):
        matcher, ids = begun.deep_copy(), vocabulary.tokens.tokenize_str(text)
        return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()

    assert [text for text in (*allowed, *refused) if allows(text)] == allowed


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('start ::= "a"', "no rule 'root'"),
        ("root ::= other", "no rule 'other'"),
        ("root ::= ", "'root' is empty"),
        ('root ::= "a"\nroot ::= "b"', "twice"),
        ('root ::= "a"\nb ::= "open', "line 2"),
        ('"a" ::= root', "not with a rule"),
    ],
)
def test_malformed_gbnf_is_refused_with_its_reason(grammar, reason):
    with pytest.raises(GbnfError, match=reason):
        lark_of(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + " | ".join(f'"w{i}"' for i in range(12_000)),
        "".join(f'r{i} ::= r{i + 1} "a"\n' for i in range(6000)) + 'r6000 ::= "x"\nroot ::= r0\n',
        "root ::= " + "{ " * 50_000,
        "root ::= " + '"a\\' * 30_000,
    ],
    ids=["choices", "chain", "braces", "quotes"],
)
def test_a_large_grammar_is_read_in_linear_time(grammar):
    began = time.process_time()
    with suppress(GbnfError):
        lark_of(grammar)
    assert time.process_time() - began < 3


class Foreign:
    """A tokenizer that works and is no fast Hugging Face tokenizer."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def __len__(self):
        return len(self._inner)


def _word_tokenizer():
    core = Tokenizer(models.WordLevel({"[UNK]": 0, "</s>": 1, "hi": 2}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="[UNK]")


@pytest.mark.parametrize(
    ("tokenizer", "end_ids"), [(Foreign(TOKENIZER), [END]), (_word_tokenizer(), [1]), (TOKENIZER, [])]
)
def test_a_tokenizer_that_cannot_be_read_is_reported_by_the_field_that_needs_it(tokenizer, end_ids):
    compiler = ConstraintCompiler(tokenizer, end_ids)
    for fields, param in ((OBJECT, "response_format"), (REQUIRED, "tool_choice"), (OBJECT, "response_format")):
        with pytest.raises(BadRequestError, match="tokenizer cannot be read") as caught:
            begin(compiler=compiler, **fields)
        assert caught.value.param == param
    assert asyncio.run(compiler.compile(rule_of(**STRICT))) is None


def test_a_model_with_fewer_tokens_than_its_tokenizer_spells_with_what_it_has():
    few = 270  # all bytes, and next to none of the merges
    schema = {"type": "object", "properties": {"name": {"enum": ["call", "result"]}}, "required": ["name"]}
    schema["additionalProperties"] = False
    for fields in ({"response_format": json_schema(schema)}, {"tools": [SHORT], "tool_choice": "required"}):
        for seed in range(3):
            drawn = walk(begin(**fields, parallel_tool_calls=False), {END}, seed=seed, vocabulary=few)
            assert max(drawn) < few
            text = TOKENIZER.decode(drawn[:-1])
            assert json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
