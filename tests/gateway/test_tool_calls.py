"""Tool calls read out of sampled text, whole or in parts, in every format."""

from __future__ import annotations

import json
import time
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mini_agentic_rl.gateway.tool_formats import (
    DEEPSEEK_FENCED,
    FORMATS,
    HERMES,
    JSON,
    KIMI,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    PythonicFormat,
    ToolCall,
    ToolFormatName,
    XmlFormat,
    split_tool_calls,
)

from .samples import CALCULATOR, CALL_TEXT, cut

GLM = XmlFormat(
    before="<tool_call>",
    opening="\n<arg_key>",
    assign="</arg_key>\n<arg_value>",
    between="</arg_value>\n<arg_key>",
    closing="</arg_value>\n</tool_call>",
    empty="\n</tool_call>",
)
GLM_IN_A_ROW = XmlFormat(
    "<tool_call>",
    "<arg_key>",
    "</arg_key><arg_value>",
    "</arg_value><arg_key>",
    "</arg_value></tool_call>",
    "</tool_call>",
    joint="",
)
INVOKE = XmlFormat(
    before='<calls>\n<invoke name="',
    opening='">\n<parameter name="',
    assign='">',
    between='</parameter>\n<parameter name="',
    closing="</parameter>\n</invoke>\n</calls>",
    empty='">\n</invoke>\n</calls>',
    words=True,
)
MINIMAX = XmlFormat(
    before='<invoke name="',
    opening='">\n<parameter name="',
    assign='">',
    between='</parameter>\n<parameter name="',
    closing="</parameter>\n</invoke>",
    empty='">\n</invoke>',
    around=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
)
ALL = (*FORMATS, GLM, GLM_IN_A_ROW, INVOKE, MINIMAX)


FRAGMENTS = [
    '{"name": "f", "arguments": {"x": 1}}', '{"name": "f", "parameters": {"s": "a}\\"b"}}', '{"name": "Bob"}',
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "```", "json",
    '```json\n', '[f(a=1, b="x")', "[g(", "f", ", g()]", "]", "[", "{", "}", '"', "'", '"""', '\\', "(", ")", ";",
    ",", "=", "<function=", '<parameter=x>\n', '\n</parameter>', "</function>", "<arg_key>", "</arg_value>", ">",
    "<calls>", "<|tool_call_start|>", "<|tool_call_end|>", '\n', " ", '\t', '\n\n', "text", "é🙂", "1", "tool_ca",
    '{"name":', '"arguments": {',
]  # fmt: skip


def read(parts):
    """Parts with neighbouring texts joined, and calls without their ids."""
    joined: list = []
    for part in parts:
        if isinstance(part, ToolCall):
            joined.append((part.name, part.arguments))
        elif joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def read_in_pieces(tool_format, parts):
    scanner = tool_format.scanner()
    parts = [part for part in parts for part in scanner.feed(part)]
    return read(parts + scanner.finish())


def calls_in(tool_format, text, tools=()):
    content, calls = split_tool_calls(tool_format, text, tools)
    return content, [(call.name, json.loads(call.arguments)) for call in calls]


def label(tool_format):
    return tool_format.forced_prefix("f")


def tools_for(calls):
    """Tools whose parameters tell which arguments of the calls are text."""
    tools = {}
    for name, arguments in calls:
        for key, value in arguments.items():
            kind = {"type": "string"} if isinstance(value, str) else {}
            assume(tools.setdefault(name, {}).setdefault(key, kind) == kind)
    return [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
        for name, properties in tools.items()
    ]


every_format = pytest.mark.parametrize("tool_format", ALL, ids=label)


@every_format
@settings(deadline=None, max_examples=25)
@given(fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=14), cuts=st.lists(st.integers(1, 9), max_size=60))
def test_pieces_do_not_depend_on_how_the_text_arrives(tool_format, fragments, cuts):
    text = "".join(fragments)
    assert read_in_pieces(tool_format, cut(text, cuts)) == read_in_pieces(tool_format, [text])


def test_every_format_can_be_chosen_by_its_name():
    assert {tool_format.name for tool_format in FORMATS} == {*get_args(ToolFormatName)} - {"auto", "compact"}


strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda text: "</tool_call>" not in text)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=8,
)


def strings_in(value):
    """All texts in a value, keys too."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return [text for item in value for text in strings_in(item)]
    return [value] if isinstance(value, str) else []


@every_format
@settings(deadline=None, max_examples=15)
@given(
    calls=st.lists(
        st.tuples(st.sampled_from(["f", "look_up", "mcp.get_x"]), st.dictionaries(strings, values, max_size=4)),
        min_size=1,
        max_size=3,
    ),
    text=st.sampled_from(["", "Let me see.", "Two\nlines"]),
)
def test_what_a_format_writes_it_reads_back_exactly(tool_format, calls, text):
    if tool_format.name == "xml":  # whose names and texts stand as they are
        assume(not any("<" in part or ">" in part or '"' in part for part in strings_in(calls)))
        assume(all(key.strip() == key != "" for _, arguments in calls for key in arguments))
    written = "\n".join(part for part in (text, tool_format.format_calls(calls)) if part)
    assert calls_in(tool_format, written, tools_for(calls)) == (text, calls)


@every_format
def test_a_form_with_tags_is_read_off_what_a_template_writes(tool_format):
    def write(calls):
        return tool_format.format_calls([("probe", arguments) for arguments in calls])

    assert XmlFormat.read_off(write, []) == (tool_format if isinstance(tool_format, XmlFormat) else None)


@every_format
def test_a_call_begins_with_the_forced_prefix_and_the_section_names_the_tools_and_shows_a_call(tool_format):
    call = tool_format.format_call("calculate", {"expression": "12+30"})
    assert call.startswith(tool_format.forced_prefix("calculate"))
    assert call.startswith(tool_format.forced_prefix(None))
    section = tool_format.section([CALCULATOR])
    assert "calculate" in section
    assert "Evaluate arithmetic." in section
    assert "additionalProperties" not in section


@pytest.mark.parametrize("tool_format", [one for one in FORMATS if one.name not in ("pythonic", "xml")], ids=label)
def test_a_shape_is_a_call_around_its_arguments(tool_format):
    before, after = tool_format.shape("calculate")
    text = f'{before}{{"expression": "12+30"}}{after}'
    assert before.startswith(tool_format.forced_prefix("calculate"))
    assert text == tool_format.format_call("calculate", {"expression": "12+30"})
    assert calls_in(tool_format, text) == ("", [("calculate", {"expression": "12+30"})])


@pytest.mark.parametrize(
    ("tool_format", "text", "content", "names"),
    [
        (LLAMA3, '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "", ["f", "g"]),
        (LLAMA3, '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', "", ["f"]),
        (LLAMA3, 'Hm. <|python_tag|> {"name": "f", "parameters": {}};', "Hm.", ["f"]),
        (LLAMA3, '{"name": "f", "arguments": {}}', "", ["f"]),
        (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdefghi"}]', "", ["f"]),
        (MISTRAL, 'Hm.[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g{"x": 1}', "Hm.", ["f", "g"]),
        (MISTRAL_NAMED, "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}", "", ["f"]),
        (JSON, '[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]', "", ["f", "g"]),
        (JSON, 'So:\n```json\n{"name": "f", "arguments": {}}\n```\nDone.', "So:Done.", ["f"]),
        (JSON, '```json\n{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {}}\n```', "", ["f", "g"]),
        (JSON, '```\n[{"name": "f", "parameters": {}}]', "", ["f"]),
        (
            JSON,
            'Hm.<|tool_call|>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',
            "Hm.",
            ["f", "g"],
        ),
        (KIMI, f"Hm.{KIMI.format_calls([('f', {}), ('a.g', {})])} Wait.", "Hm.Wait.", ["f", "a.g"]),
        (DEEPSEEK_FENCED, f"Hm.{DEEPSEEK_FENCED.format_calls([('f', {}), ('g', {})])}", "Hm.", ["f", "g"]),
        (MINIMAX, f"Hm.\n{MINIMAX.format_calls([('f', {'a': 1}), ('g', {})])}\nWait.", "Hm.Wait.", ["f", "g"]),
        (PythonicFormat(), "[f(a=1, b='x'), g()]", "", ["f", "g"]),
        (PythonicFormat(), "Hm.<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>Wait.", "Hm.Wait.", ["f", "g"]),
        (XmlFormat(), "Hm.\n\n<tool_call><function=f></function></tool_call>\n\nWell.", "Hm.Well.", ["f"]),
        (XmlFormat(), "<tool_call>\n\n<function=f>\n<parameter=a>1</parameter></function> </tool_call>", "", ["f"]),
        (
            GLM,
            "<tool_call>f\n</tool_call><tool_call>g<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
            "",
            ["f", "g"],
        ),
        (PythonicFormat(), 'Hm.\n[f(code="""a = [1]\nprint("]")""")]', "Hm.", ["f"]),
        (
            PythonicFormat(),
            "[get-weather(city='Rome'), a.b(x=-1.5, y=[true, None], z={'k': (1,)})]",
            "",
            ["get-weather", "a.b"],
        ),
    ],
)
def test_the_forms_that_models_write_are_read(tool_format, text, content, names):
    found, calls = split_tool_calls(tool_format, text)
    assert (found, [call.name for call in calls]) == (content, names)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "007", "007"),
        ({"type": "string"}, ' {"a": 1}\n', ' {"a": 1}\n'),
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, "seven", "seven"),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "7", 7),
        ({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/name"}]}, "7", "7"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"const": True}, "true", True),
        ({"type": "array", "items": {"type": "string"}}, '["a", "b"]', ["a", "b"]),
        ({"$ref": "#/$defs/loop"}, "7", 7),
        ({"type": 3, "enum": 4, "anyOf": 5, "$ref": 6}, "7", 7),
        (7, "[1]", [1]),
        ({}, '"quoted"', '"quoted"'),
    ],
)
def test_the_parameters_of_a_tool_tell_text_from_numbers(schema, text, value):
    definitions = {"name": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": definitions}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    for form in (XmlFormat(), GLM):
        written = form.format_call("f", {"a": text})
        assert calls_in(form, written, tools) == ("", [("f", {"a": value})])


def test_python_values_become_json():
    text = r"""[f(a=1, b='it\'s \d', c=True, d=null, e=[1.5, -2], g={'k': "v"}, **{"my-key": ()})]"""
    _, [(_, arguments)] = calls_in(PythonicFormat(), text)
    assert arguments == {"a": 1, "b": "it's \\d", "c": True, "d": None, "e": [1.5, -2], "g": {"k": "v"}, "my-key": []}


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        *((HERMES, f"Hm. <tool_call>{body}</tool_call> Well.") for body in (
            '{"name": "f", "arguments": {"x": NaN}}', '{"name": "f", "arguments": {"x": 1e999}}',
            '{"name": "f", "arguments": {"x": ' + "[" * 200 + "]" * 200 + "}}", "{broken", "[]", "7",
            '{"arguments": {}}', '{"name": 3}', '{"name": ""}', '{"name": "f", "arguments": "x"}',
        )),
        *((one, text) for one in (LLAMA3, JSON) for text in (
            '{"name": "Bob", "age": 3}', '{"name": "f"}', "{}", '{"x": 1} and more', '{"name": "f", "arguments": 3}',
            'as in {"name": "f", "arguments": {}}', '{"name": "f", "arguments": {"x": "never closed', "{\n{\n{",
        )),
        *((LLAMA3, text) for text in ("<|python_tag|>print(1)", "<|python_tag|> {broken} x")),
        *((MISTRAL, text) for text in (
            "[TOOL_CALLS]", "[TOOL_CALLS][1]", "[TOOL_CALLS] the tool", "[TOOL_CALLS]f[ARGS]{broken}",
            "[TOOL_CALLS]f[ARGS]",
            '[TOOL_CALLS][{"name": "f"}] x', "[TOOL_CALLS]{}", "[TOOL_CALLS]" + "f" * 300 + "{}",
        )),
        *((JSON, text) for text in (
            "```python\nprint([1])\n```", '```json\n{"a": 1}\n```', "```json\n{broken\n```", "[1, 2]", "[]", "a ``` b",
            '[{"name": "f", "arguments": {}}, 7] x', "[" * 3000,
        )),
        *((XmlFormat(), f"Hm. <tool_call>{body}</tool_call> Well.") for body in (
            "", "f", "<function=>\n</function>", "<function=f g></function>", "<function=f><parameter=a>1</function>",
            '{"name": "f", "arguments": {}}', "<function=f>", "<function=f><parameter=a</parameter></function>",
        )),
        (XmlFormat(), "<tool_call>\n<function=f>\n<parameter=a>\nnever closed"),
        *((GLM, f"Hm. <tool_call>{body}</tool_call> Well.") for body in (
            "", "two words", "f<arg_key>a", "f<arg_key>a</arg_key><arg_value>1", "<b>",
        )),
        *((MINIMAX, f"Hm. <minimax:tool_call>{body}</minimax:tool_call> Well.") for body in (
            "", "x", '<invoke name="f">', '<invoke name="f"></invoke>x',
            '<invoke name="f"><parameter name="a"></invoke>',
        )),
        *((KIMI, f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>") for body in (
            "", "x", "<|tool_call_begin|>functions.f:0",
            "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>[]",
            "x<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        )),
        *((PythonicFormat(), f"<|tool_call_start|>{body}<|tool_call_end|>") for body in ("", "f", "[1]", "[f(1)]")),
        *((PythonicFormat(), text) for text in (
            "[1, 2]", "[f(1)]", "[f(a=g())]", "[f(a=b)]", "[f(a=f'{x}')]", "[f(a=b'x')]", "[f(a=1e999)]", "[f(**3)]",
            "[f(a=1, a=2)]", "[f(a='x\n')]", "[f(a=1] x", "[text](url)", "see [f(a=1)]",
            "[__import__('os').system(x='ls')]",
            "[f(" + "(" * 5000, "[f(a=" + "-" * 9000 + "1)]", "[f(a=" + "9" * 5000 + ")]", "[f(a='\0')]",
            "[f(a={1: 2})]",
            "[f(a='" + "x" * 70_000 + "')]",
        )),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else label(value),
)  # fmt: skip
def test_what_is_no_call_stays_the_text_that_it_is(tool_format, text):
    assert split_tool_calls(tool_format, text) == (text, [])


ADVERSARIAL = [
    "<tool_call>", "[TOOL_CALLS]", "```", '{\n', '[\n', '{"name": ', '[f(\n', '[TOOL_CALLS][{"name":',
    "[TOOL_CALLS]f{", "<tool_call><function=f>", "<tool_call><function=f><parameter=a>", '</parameter>\n',
    "</parameter><parameter=", "<tool_call>f<arg_key>", "</arg_value>", "<|tool_call_start|>[f(",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.", "<minimax:tool_call><invoke name=",
    '```\n{"name": ```', " ", '\n', '"', "`", "\n[f('", '[f(a=1)]\n', '{"name": "f", "arguments": {}}\n',
]  # fmt: skip


@pytest.mark.parametrize(
    "tool_format", [HERMES, LLAMA3, MISTRAL, JSON, PythonicFormat(), XmlFormat(), GLM, MINIMAX, KIMI], ids=label
)
def test_adversarial_text_costs_time_in_proportion_to_its_length(tool_format):
    for part in ADVERSARIAL:
        text = part * (12_000 // len(part))
        for size in (len(text), 3):
            started = time.process_time()
            read_in_pieces(tool_format, [text[at : at + size] for at in range(0, len(text), size)])
            assert time.process_time() - started < 3.0, part


def test_arguments_and_the_closing_tag_may_be_missing_and_arguments_may_be_json_text():
    assert split_tool_calls(HERMES, CALL_TEXT.removesuffix("\n</tool_call>"))[1][0].name == "calculate"
    assert split_tool_calls(HERMES, '<tool_call>{"name": "f"}</tool_call>')[1][0].arguments == "{}"
    text = '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>'
    assert split_tool_calls(HERMES, text)[1][0].arguments == '{"x": 1}'


def test_half_a_character_in_an_argument_is_replaced_so_that_the_call_can_be_sent():
    (call,) = split_tool_calls(HERMES, '<tool_call>{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>')[1]
    assert call.arguments == '{"x": "\ufffd"}'
    assert split_tool_calls(PythonicFormat(), "[f(x='\\ud800')]")[1][0].arguments == '{"x": "\ufffd"}'


def test_text_is_given_out_before_a_call_is_complete():
    scanner = HERMES.scanner()
    assert scanner.feed("Let me see. <tool_") == ["Let me see."]
    assert scanner.feed('call>\n{"name": "f"') == []
    (call,) = scanner.feed("}</tool_call>")
    assert isinstance(call, ToolCall)


@pytest.mark.parametrize("tool_format", [LLAMA3, JSON], ids=label)
def test_an_object_that_cannot_be_a_call_is_given_out_at_once(tool_format):
    scanner = tool_format.scanner()
    assert "".join(scanner.feed('{"answer": ')) == '{"answer":'


def test_a_python_list_that_does_not_end_is_given_out_and_calls_after_it_are_read():
    scanner = PythonicFormat().scanner()
    assert scanner.feed("[f(" + "x" * 70_000)
    (call,) = (part for part in scanner.feed("\n[g(x=1)]") + scanner.finish() if isinstance(part, ToolCall))
    assert call.name == "g"


def test_an_argument_that_python_would_read_under_another_name_is_quoted():
    written = PythonicFormat().format_call("f", {"ª": 1, "b": 2})
    assert written == '[f(**{"ª": 1, "b": 2})]'
    assert [call.arguments for call in split_tool_calls(PythonicFormat(), written)[1]] == ['{"ª": 1, "b": 2}']
