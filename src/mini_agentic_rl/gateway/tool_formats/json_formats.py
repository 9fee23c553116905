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
    CallScanner,
    JsonValue,
    MarkedJson,
    Opening,
    Step,
    TextOrCall,
    Tool,
    ToolFormat,
    Until,
    calls_of,
    json_text,
    make_call,
    parse_values,
    read_json,
    tools_section,
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


class _MistralBlock:
    """A list of objects, or a name and an object, after [TOOL_CALLS]."""

    def __init__(self) -> None:
        self._value: JsonValue | None = None
        self._name = ""

    def step(self, char: str) -> Step:
        if self._value is not None:
            return self._value.step(char)
        if char.isspace():
            return Step.ON
        if char == "{" and self._name:
            self._value = JsonValue(())
        elif char == "[" and not self._name:
            self._value = JsonValue(_LIST_HEADS)
        elif len(self._name) == _LONGEST_NAME or char in '{}"' or self._name == "[":
            return Step.REFUSE
        else:
            self._name += char
        return Step.ON


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


class _FencedBlock:
    """JSON values in a Markdown fence, whose label is empty or says JSON."""

    _LABELS = ("json", "tool_call", "tool_calls")

    def __init__(self) -> None:
        self._label = ""
        self._value: JsonValue | None = None
        self._complete = False
        self._ticks = 0

    def step(self, char: str) -> Step:
        if self._value is not None and not self._complete:
            step = self._value.step(char)
            self._complete = step is Step.END
            return Step.ON if self._complete else step
        if self._complete:
            return self._step_after_value(char)
        if char in "{[" and self._label in ("", *self._LABELS):
            self._value = JsonValue(_HEADS if char == "{" else _LIST_HEADS)
        elif not char.isspace():
            self._label += char
            if not any(label.startswith(self._label) for label in self._LABELS):
                return Step.REFUSE
        return Step.ON

    def _step_after_value(self, char: str) -> Step:
        if char == "`":
            self._ticks += 1
            return Step.END if self._ticks == 3 else Step.ON
        if self._ticks or not (char.isspace() or char in "{["):
            return Step.END
        if char in "{[":
            self._value, self._complete = JsonValue(()), False
        return Step.ON


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
        (Opening(begin, partial(Until, end), read),),
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
    (Opening("<tool_call>", partial(Until, "</tool_call>"), _read_hermes),),
    ('<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>"),
    result=_TOOL_RESPONSE,
    json_result=False,
    markers=("<tool_call>", "</tool_call>"),
)
LLAMA3 = JsonCalls(
    "llama3",
    (
        Opening("<|python_tag|>", lambda: MarkedJson({"{": _HEADS}), partial(_read_object, marker="<|python_tag|>")),
        Opening("{", lambda: JsonValue(_HEADS), _read_object, at_line_start=True),
    ),
    ('{"name": ', ', "parameters": ', "}"),
    joint="; ",
    result=('{"output": ', "}"),
    markers=("<|python_tag|>",),
    separators=";",
)
_MISTRAL_OPENINGS = (Opening("[TOOL_CALLS]", _MistralBlock, _read_mistral),)
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
    Opening(_MARK, lambda: MarkedJson({"{": _HEADS, "[": _LIST_HEADS}), partial(_read_object, marker=_MARK)),
    Opening("```", _FencedBlock, _read_fenced),
    Opening("{", lambda: JsonValue(_HEADS), _read_object, at_line_start=True),
    Opening("[", lambda: JsonValue(_LIST_HEADS), _read_object, at_line_start=True),
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
