"""Tool calls written as JSON: the formats of Hermes, Llama 3, Mistral, and plain JSON.

`HermesFormat`, which Qwen and many others use:

    <tool_call>
    {"name": "calculate", "arguments": {"expression": "2+2"}}
    </tool_call>

`Llama3Format`, of Llama 3.1 to 3.3, separates several objects by semicolons; `<|python_tag|>` may stand before one:

    {"name": "calculate", "parameters": {"expression": "2+2"}}

`MistralFormat` begins with the special token `[TOOL_CALLS]`: a list of objects, up to the third tokenizer version, and
since then a name before the arguments, for each call anew (`[ARGS]` may be missing, `[CALL_ID]...` may precede it):

    [TOOL_CALLS][{"name": "calculate", "arguments": {"expression": "2+2"}}]
    [TOOL_CALLS]calculate[ARGS]{"expression": "2+2"}

`JsonFormat` is one object or a list of them, bare, in a ```json fence, or after the special token `<|tool_call|>`,
where Granite and Phi-4 write a list. A bare object is read as a call only where a line begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .base import (
    CallScanner,
    CallShape,
    JsonValue,
    MarkedJson,
    Opening,
    Scanner,
    Step,
    TextOrCall,
    Tool,
    Until,
    calls_of,
    json_text,
    make_call,
    parse_values,
    read_json,
    tools_section,
)

_HERMES_OPEN = "<tool_call>"
_HERMES_CLOSE = "</tool_call>"


class HermesFormat:
    """Each call between tags of its own."""

    name = "hermes"
    markers = (_HERMES_OPEN, _HERMES_CLOSE)

    def section(self, tools: Sequence[Tool]) -> str:
        return tools_section(tools, f'{_HERMES_OPEN}\n{{"name": "...", "arguments": {{...}}}}\n{_HERMES_CLOSE}')

    def format_call(self, name: str, arguments: Any) -> str:
        return f"{self.forced_prefix(name)} {json_text(arguments)}}}\n{_HERMES_CLOSE}"

    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        return "\n".join(self.format_call(name, arguments) for name, arguments in calls)

    def format_result(self, content: str) -> str:
        return f"<tool_response>\n{content}\n</tool_response>"

    def shape(self, name: str, parameters: Mapping[str, Any]) -> CallShape | None:
        return CallShape(f"{self.forced_prefix(name)} ", parameters, f"}}\n{_HERMES_CLOSE}")

    def forced_prefix(self, name: str | None) -> str:
        if name is None:
            return f'{_HERMES_OPEN}\n{{"name":'
        return f'{_HERMES_OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'

    def scanner(self, tools: Sequence[Tool] = ()) -> Scanner:
        return CallScanner(_HERMES_OPENINGS)


def _read_hermes(raw: str) -> list[TextOrCall]:
    """Read one call. One whose closing tag the end of the text cut off counts when it is complete otherwise."""
    value = read_json(raw.removeprefix(_HERMES_OPEN).removesuffix(_HERMES_CLOSE))
    call = make_call(value.get("name"), value.get("arguments")) if isinstance(value, dict) else None
    return [raw] if call is None else [call]


_HERMES_OPENINGS = (Opening(_HERMES_OPEN, lambda: Until(_HERMES_CLOSE), _read_hermes),)


_PYTHON_TAG = "<|python_tag|>"
_LLAMA_HEADS = ('"name":', '"parameters":', '"arguments":', '"type":', '"id":')
_LLAMA_KEYS = ("parameters", "arguments")


class Llama3Format:
    """Bare objects."""

    name = "llama3"
    markers = (_PYTHON_TAG,)

    def section(self, tools: Sequence[Tool]) -> str:
        return tools_section(tools, '{"name": "...", "parameters": {...}}')

    def format_call(self, name: str, arguments: Any) -> str:
        return f"{self.forced_prefix(name)} {json_text(arguments)}}}"

    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        return "; ".join(self.format_call(name, arguments) for name, arguments in calls)

    def format_result(self, content: str) -> str:
        return json_text({"output": content})

    def shape(self, name: str, parameters: Mapping[str, Any]) -> CallShape | None:
        return CallShape(f"{self.forced_prefix(name)} ", parameters, "}")

    def forced_prefix(self, name: str | None) -> str:
        if name is None:
            return '{"name":'
        return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "parameters":'

    def scanner(self, tools: Sequence[Tool] = ()) -> Scanner:
        return CallScanner(_LLAMA_OPENINGS, separators=";")


def _read_llama(raw: str) -> list[TextOrCall]:
    return [*calls_of(read_json(raw.removeprefix(_PYTHON_TAG)), _LLAMA_KEYS)] or [raw]


_LLAMA_OPENINGS = (
    Opening(_PYTHON_TAG, lambda: MarkedJson({"{": _LLAMA_HEADS}), _read_llama),
    Opening("{", lambda: JsonValue(_LLAMA_HEADS), _read_llama, at_line_start=True),
)


_CALLS_TAG = "[TOOL_CALLS]"
_ARGS = "[ARGS]"
_CALL_ID = "[CALL_ID]"
_LONGEST_NAME = 256
_NAMED = re.compile(r"\s*([^\s{}\[\]\"]+)\s*(?:\[CALL_ID\]\s*[^\s{}\[\]\"]*\s*)?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)


class MistralFormat:
    """Reads both forms.

    Args:
        named: whether to write the newer form.
    """

    name = "mistral"
    markers = (_CALLS_TAG, _ARGS, _CALL_ID)

    def __init__(self, named: bool = False) -> None:
        self._named = named

    def section(self, tools: Sequence[Tool]) -> str:
        listed = f'{_CALLS_TAG}[{{"name": "...", "arguments": {{...}}}}]'
        example = f"{_CALLS_TAG}NAME{_ARGS}{{...}}" if self._named else listed
        return tools_section(tools, example)

    def format_call(self, name: str, arguments: Any) -> str:
        return self.format_calls([(name, arguments)])

    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        if self._named:
            return "".join(f"{self.forced_prefix(name)}{json_text(arguments)}" for name, arguments in calls)
        entries = (f'{{"name": {_quoted(name)}, "arguments": {json_text(arguments)}}}' for name, arguments in calls)
        return f"{_CALLS_TAG}[{', '.join(entries)}]"

    def format_result(self, content: str) -> str:
        return f"[TOOL_RESULTS]{json_text({'content': content})}[/TOOL_RESULTS]"

    def shape(self, name: str, parameters: Mapping[str, Any]) -> CallShape | None:
        if self._named:
            return CallShape(self.forced_prefix(name), parameters, "")
        return CallShape(f"{self.forced_prefix(name)} ", parameters, "}]")

    def forced_prefix(self, name: str | None) -> str:
        if self._named:
            return _CALLS_TAG if name is None else f"{_CALLS_TAG}{name}{_ARGS}"
        start = f'{_CALLS_TAG}[{{"name":'
        return start if name is None else f'{start} {_quoted(name)}, "arguments":'

    def scanner(self, tools: Sequence[Tool] = ()) -> Scanner:
        return CallScanner(_MISTRAL_OPENINGS)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


class _Tagged:
    """A list of objects, or a name and an object, after the tag."""

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
            self._value = JsonValue(_MISTRAL_HEADS)
        elif len(self._name) == _LONGEST_NAME or char in '{}"' or self._name == "[":
            return Step.REFUSE
        else:
            self._name += char
        return Step.ON


_MISTRAL_HEADS = ('{"name":', '{"arguments":', '{"id":', '{"type":')


def _read_mistral(raw: str) -> list[TextOrCall]:
    rest = raw.removeprefix(_CALLS_TAG)
    named = _NAMED.fullmatch(rest)
    if named is None:
        return [*calls_of(read_json(rest), ("arguments", "parameters"))] or [raw]
    arguments = read_json(named.group(2))
    call = make_call(named.group(1), arguments) if isinstance(arguments, dict) else None
    return [raw] if call is None else [call]


_MISTRAL_OPENINGS = (Opening(_CALLS_TAG, _Tagged, _read_mistral),)


_MARK = "<|tool_call|>"
_FENCE = "```"
_LABELS = ("json", "tool_call", "tool_calls")
_HEADS = ('"name":', '"arguments":', '"parameters":', '"id":', '"type":')
_LIST_HEADS = tuple(f"{{{head}" for head in _HEADS)
_KEYS = ("arguments", "parameters")
_BRACKET = re.compile(r"[{\[]")


class JsonFormat:
    """Reads all forms.

    Args:
        marked: whether to write a list after the mark; else bare objects, one a line.
    """

    name = "json"
    markers = (_MARK,)

    def __init__(self, marked: bool = False) -> None:
        self._before, self._after = (f"{_MARK}[", "]") if marked else ("", "")
        self._between = ", " if marked else "\n"

    def section(self, tools: Sequence[Tool]) -> str:
        return tools_section(tools, f'{self._before}{{"name": "...", "arguments": {{...}}}}{self._after}')

    def format_call(self, name: str, arguments: Any) -> str:
        return self.format_calls([(name, arguments)])

    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        entries = (f"{_start(name)} {json_text(arguments)}}}" for name, arguments in calls)
        return f"{self._before}{self._between.join(entries)}{self._after}"

    def format_result(self, content: str) -> str:
        return json_text({"result": content})

    def shape(self, name: str, parameters: Mapping[str, Any]) -> CallShape | None:
        return CallShape(f"{self.forced_prefix(name)} ", parameters, f"}}{self._after}")

    def forced_prefix(self, name: str | None) -> str:
        return self._before + _start(name)

    def scanner(self, tools: Sequence[Tool] = ()) -> Scanner:
        return CallScanner(_JSON_OPENINGS)


def _start(name: str | None) -> str:
    return '{"name":' if name is None else f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'


class _Fenced:
    """Values in a fence: a label that says JSON or nothing, values in a row, the closing fence."""

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
            return self._step_after(char)
        if char in "{[" and self._label in ("", *_LABELS):
            self._value = JsonValue(_HEADS if char == "{" else _LIST_HEADS)
        elif not char.isspace():
            self._label += char
            if not any(label.startswith(self._label) for label in _LABELS):
                return Step.REFUSE
        return Step.ON

    def _step_after(self, char: str) -> Step:
        if char == "`":
            self._ticks += 1
            return Step.END if self._ticks == len(_FENCE) else Step.ON
        if self._ticks or not (char.isspace() or char in "{["):
            return Step.END
        if char in "{[":
            self._value, self._complete = JsonValue(()), False
        return Step.ON


def _read_bare(raw: str) -> list[TextOrCall]:
    return [*calls_of(read_json(raw.removeprefix(_MARK)), _KEYS)] or [raw]


def _read_fenced(raw: str) -> list[TextOrCall]:
    """Return the calls, and what stands after them in place of the closing fence."""
    bracket = _BRACKET.search(raw)
    if bracket is None:
        return [raw]
    values, end = parse_values(raw, bracket.start())
    calls = [calls_of(value, _KEYS) for value in values]
    if not all(calls) or not calls:
        return [raw]
    rest = raw[end:].strip().removeprefix(_FENCE)
    return [*(call for of_value in calls for call in of_value), *([rest] if rest else [])]


_JSON_OPENINGS = (
    Opening(_MARK, lambda: MarkedJson({"{": _HEADS, "[": _LIST_HEADS}), _read_bare),
    Opening(_FENCE, _Fenced, _read_fenced),
    Opening("{", lambda: JsonValue(_HEADS), _read_bare, at_line_start=True),
    Opening("[", lambda: JsonValue(_LIST_HEADS), _read_bare, at_line_start=True),
)
