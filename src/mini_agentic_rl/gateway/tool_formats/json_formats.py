"""Tool calls whose arguments are JSON: a table of formats, and how each is read.

    hermes     <tool_call>\\n{"name": "f", "arguments": {...}}\\n</tool_call>        Hermes, Qwen and many others
    llama3     {"name": "f", "parameters": {...}}; ...                            Llama 3.1 to 3.3
    mistral    [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]               Mistral, up to tokenizer version 3
               [TOOL_CALLS]f[ARGS]{...}                                           later versions, for each call
    json       {"name": "f", "arguments": {...}}                                  bare, or in a ```json fence
               <|tool_call|>[{"name": "f", "arguments": {...}}, ...]              Granite and Phi-4
    kimi       <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>     Kimi K2
    deepseek   <|tool_call_begin|>f<|tool_sep|>{...}<|tool_call_end|>             DeepSeek V3.1 and later
               <|tool_call_begin|>function<|tool_sep|>f\\n```json\\n{...}\\n```<|tool_call_end|>         V3 and R1

DeepSeek writes its markers with other letters: U+FF5C for the bar and U+2581 for the low line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .base import (
    Block,
    CallScanner,
    NotACallError,
    Opening,
    TextOrCall,
    Tool,
    ToolFormat,
    calls_of,
    json_text,
    json_value,
    make_call,
    marked_json,
    parse_values,
    read_json,
    tools_section,
    until,
)

_KEYS = ("arguments", "parameters")
_HEADS = ('"name":', '"arguments":', '"parameters":', '"id":', '"type":')
_LIST_HEADS = tuple(f"{{{head}" for head in _HEADS)
_LONGEST_NAME = 256


@dataclass(frozen=True)
class JsonCalls(ToolFormat):
    """A row of the table: the texts around the names and the arguments of calls."""

    name: str
    openings: Sequence[Opening]
    """How calls are found and read."""
    call: tuple[str, str, str] = ('{"name": ', ', "arguments": ', "}")
    """Texts before the name, between name and arguments, and after the arguments. INDEX stands for the position of the
    call."""
    around: tuple[str, str] = ("", "")
    """Texts before the first and after the last call."""
    joint: str = "\n"
    """Text between two calls."""
    quoted: bool = True
    """True if the name is a JSON string."""
    result: tuple[str, str] = ("", "")
    """Texts around a tool's result."""
    json_result: bool = True
    """True if the result is a JSON string."""
    markers: Sequence[str] = ()
    separators: str = ""
    """Characters between calls that are dropped in reading."""

    def section(self, tools: Sequence[Tool]) -> str:
        return tools_section(tools, self.format_call("..." if self.quoted else "NAME", "{...}"))

    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        _, middle, after = self.call
        written = [
            self._start(name) + middle.replace("INDEX", str(index)) + json_text(arguments) + after
            for index, (name, arguments) in enumerate(calls)
        ]
        return self.around[0] + self.joint.join(written) + self.around[1]

    def format_result(self, content: str) -> str:
        text = json.dumps(content, ensure_ascii=False) if self.json_result else content
        return self.result[0] + text + self.result[1]

    def shape(self, name: str) -> tuple[str, str]:
        before = self.around[0] + self._start(name) + self.call[1].replace("INDEX", "0")
        return before, self.call[2] + self.around[1]

    def forced_prefix(self, name: str | None) -> str:
        if name is None:
            return self.around[0] + self.call[0].rstrip()
        return self.around[0] + self._start(name) + self.call[1].replace("INDEX", "0").rstrip(" ")

    def scanner(self, tools: Sequence[Tool] = ()) -> CallScanner:
        return CallScanner(self.openings, self.separators)

    def _start(self, name: str) -> str:
        return self.call[0] + (json.dumps(name, ensure_ascii=False) if self.quoted else name)


def _read_hermes(raw: str) -> list[TextOrCall]:
    """Read one call; its closing tag may be missing at the end of the text."""
    value = read_json(raw.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    call = make_call(value.get("name"), value.get("arguments")) if isinstance(value, dict) else None
    return [raw] if call is None else [call]


def _read_object(raw: str, marker: str = "") -> list[TextOrCall]:
    """Read one object or a list of objects, after a marker if there is one."""
    return [*calls_of(read_json(raw.removeprefix(marker)), _KEYS)] or [raw]


def _mistral_block() -> Block:
    """Read a list of objects, or a name and an object, after [TOOL_CALLS]."""
    name = ""
    while True:
        char = yield
        if char.isspace():
            continue
        if char == "{" and name:
            yield from json_value()
            return
        if char == "[" and not name:
            yield from json_value(_LIST_HEADS)
            return
        if len(name) == _LONGEST_NAME or char in '{}"':
            raise NotACallError
        name += char


_MISTRAL_CALL = re.compile(
    r"\s*([^\s{}\[\]\"]+)\s*(?:\[CALL_ID\]\s*[^\s{}\[\]\"]*\s*)?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL
)


def _read_mistral(raw: str) -> list[TextOrCall]:
    rest = raw.removeprefix("[TOOL_CALLS]")
    named = _MISTRAL_CALL.fullmatch(rest)
    if named is None:
        return [*calls_of(read_json(rest), _KEYS)] or [raw]
    arguments = read_json(named.group(2))
    call = make_call(named.group(1), arguments) if isinstance(arguments, dict) else None
    return [raw] if call is None else [call]


_LABELS = ("json", "tool_call", "tool_calls")


def _fenced_block() -> Block:
    """Read JSON values in a Markdown fence, whose label is empty or says JSON."""
    label = ""
    while (char := (yield)) not in "{[" or label not in ("", *_LABELS):
        label += char.strip()
        if not any(known.startswith(label) for known in _LABELS):
            raise NotACallError
    yield from json_value(_HEADS if char == "{" else _LIST_HEADS)
    ticks = 0
    while ticks < 3:
        char = yield
        if char == "`":
            ticks += 1
        elif char in "{[" and not ticks:
            yield from json_value()
        elif ticks or not char.isspace():
            return


_BRACKET = re.compile(r"[{\[]")


def _read_fenced(raw: str) -> list[TextOrCall]:
    bracket = _BRACKET.search(raw)
    if bracket is None:
        return [raw]
    values, end = parse_values(raw, bracket.start())
    calls = [calls_of(value, _KEYS) for value in values]
    if not all(calls) or not calls:
        return [raw]
    rest = raw[end:].strip().removeprefix("```")  # text that stands in place of the closing fence
    return [*(call for of_value in calls for call in of_value), *([rest] if rest else [])]


def _marked_calls(
    name: str, call: tuple[str, str, str], around: tuple[str, str], joint: str = "", result: tuple[str, str] = ("", "")
) -> JsonCalls:
    """Return a format with special tokens around names and arguments, and around all calls."""
    before, middle, after = call
    begin, end = around
    separator = middle.removeprefix(":INDEX")

    def read(raw: str) -> list[TextOrCall]:
        lead, *texts = raw.removeprefix(begin).removesuffix(end).split(before.strip())
        calls: list[TextOrCall] = []
        for text in texts:
            named, separated, rest = text.partition(separator.strip())
            tool = named.strip() if separator == middle else re.sub(r":\d+\Z", "", named.strip())
            arguments, _, trail = rest.partition(after.strip())
            readable = separated and not trail.strip() and re.fullmatch(r"[^\s<>{}\"]+", tool)
            made = make_call(tool, arguments.strip()) if readable else None
            if made is None:
                return [raw]
            calls.append(made)
        return [raw] if lead.strip() or not calls else calls

    special = re.findall(r"<[|\uff5c][^<>]*>", "".join((*around, *call)))
    return JsonCalls(
        name,
        (Opening(begin, partial(until, end), read),),
        call,
        around,
        joint,
        quoted=False,
        result=result,
        json_result=False,
        markers=tuple(dict.fromkeys(special)),
    )


_TOOL_RESPONSE = ("<tool_response>\n", "\n</tool_response>")

HERMES = JsonCalls(
    "hermes",
    (Opening("<tool_call>", partial(until, "</tool_call>"), _read_hermes),),
    ('<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>"),
    result=_TOOL_RESPONSE,
    json_result=False,
    markers=("<tool_call>", "</tool_call>"),
)
LLAMA3 = JsonCalls(
    "llama3",
    (
        Opening("<|python_tag|>", lambda: marked_json({"{": _HEADS}), partial(_read_object, marker="<|python_tag|>")),
        Opening("{", lambda: json_value(_HEADS), _read_object, at_line_start=True),
    ),
    ('{"name": ', ', "parameters": ', "}"),
    joint="; ",
    result=('{"output": ', "}"),
    markers=("<|python_tag|>",),
    separators=";",
)
_MISTRAL_OPENINGS = (Opening("[TOOL_CALLS]", _mistral_block, _read_mistral),)
_MISTRAL_MARKERS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
_MISTRAL_RESULT = ('[TOOL_RESULTS]{"content": ', "}[/TOOL_RESULTS]")
MISTRAL = JsonCalls(
    "mistral",
    _MISTRAL_OPENINGS,
    around=("[TOOL_CALLS][", "]"),
    joint=", ",
    result=_MISTRAL_RESULT,
    markers=_MISTRAL_MARKERS,
)
MISTRAL_NAMED = JsonCalls(
    "mistral",
    _MISTRAL_OPENINGS,
    ("[TOOL_CALLS]", "[ARGS]", ""),
    joint="",
    quoted=False,
    result=_MISTRAL_RESULT,
    markers=_MISTRAL_MARKERS,
)
_MARK = "<|tool_call|>"
_JSON_OPENINGS = (
    Opening(_MARK, lambda: marked_json({"{": _HEADS, "[": _LIST_HEADS}), partial(_read_object, marker=_MARK)),
    Opening("```", _fenced_block, _read_fenced),
    Opening("{", lambda: json_value(_HEADS), _read_object, at_line_start=True),
    Opening("[", lambda: json_value(_LIST_HEADS), _read_object, at_line_start=True),
)
JSON = JsonCalls("json", _JSON_OPENINGS, result=('{"result": ', "}"), markers=(_MARK,))
JSON_MARKED = JsonCalls(
    "json", _JSON_OPENINGS, around=(f"{_MARK}[", "]"), joint=", ", result=('{"result": ', "}"), markers=(_MARK,)
)
KIMI = _marked_calls(
    "kimi",
    ("<|tool_call_begin|>functions.", ":INDEX<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
)
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_RESULT = ("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>")
DEEPSEEK = _marked_calls(
    "deepseek",
    ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    _DEEPSEEK,
    result=_DEEPSEEK_RESULT,
)
DEEPSEEK_FENCED = _marked_calls(
    "deepseek",
    ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"),
    _DEEPSEEK,
    "\n",
    _DEEPSEEK_RESULT,
)
