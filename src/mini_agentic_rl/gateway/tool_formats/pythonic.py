"""Tool calls as a list of Python calls, which Llama 3.2, Llama 4 and others write.

[calculate(expression="2+2"), look_up(word="sum")]

Arguments are named and are literals; the text is parsed, never run. A list is read only at the start of a line, or
between `<|tool_call_start|>` and `<|tool_call_end|>`, as LFM2 writes it.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
import unicodedata
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any

from .base import (
    Block,
    CallScanner,
    NotACallError,
    Opening,
    TextOrCall,
    Tool,
    ToolCall,
    ToolFormat,
    make_call,
    tools_section,
    until,
)

_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"
_LONGEST = 65_536
"""Longest list in characters; its syntax tree takes about a hundred times as many bytes."""
_NAMES = {"true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = "\\'\"\nabfnrtvxuUN01234567"


class PythonicFormat(ToolFormat):
    """A list of calls, with or without markers around it; both are read.

    Args:
        marked: write the markers.
    """

    name = "pythonic"
    markers = (_START, _END)

    def __init__(self, marked: bool = False) -> None:
        self._before, self._after = (_START, _END) if marked else ("", "")

    def section(self, tools: Sequence[Tool]) -> str:
        return tools_section(tools, f'{self._before}[NAME(parameter="...", ...)]{self._after}')

    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        written = ", ".join(f"{name}({_arguments(arguments)})" for name, arguments in calls)
        return f"{self._before}[{written}]{self._after}"

    def format_result(self, content: str) -> str:
        return json.dumps({"result": content}, ensure_ascii=False)

    def forced_prefix(self, name: str | None) -> str:
        return self._before + ("[" if name is None else f"[{name}(")

    def scanner(self, tools: Sequence[Tool] = ()) -> CallScanner:
        return CallScanner(_OPENINGS)


def _arguments(arguments: Any) -> str:
    if not isinstance(arguments, dict):
        return str(arguments)
    for name in arguments:  # Python normalizes identifiers to NFKC
        if not name.isidentifier() or keyword.iskeyword(name) or unicodedata.normalize("NFKC", name) != name:
            return f"**{_literal(arguments)}"
    return ", ".join(f"{name}={_literal(value)}" for name, value in arguments.items())


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(str(key))}: {_literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _call_list() -> Block:
    """Read a list whose first item starts with `name(`, or `_LONGEST` characters of it: then it is text, and calls may
    follow."""
    block = _whole_list()
    next(block)
    with suppress(StopIteration):
        for _ in range(_LONGEST):
            block.send((yield))


def _whole_list() -> Block:
    head = ""
    while (char := (yield)) != "(" or not head:
        if char.isspace():
            head = head and head.rstrip() + " "
        elif head.endswith(" ") or not (char.isalnum() or char in "_.-"):
            raise NotACallError
        else:
            head += char
    depth = 2
    while depth:
        following: str | None = yield
        while following == "'" or following == '"':
            following = yield from _string(following)
        if following is None:
            return
        depth += following in ("(", "[", "{")
        depth -= following in (")", "]", "}")


def _string(quote: str) -> Generator[None, str, str | None]:
    """Read a string after its first quote. Return the next character if it was read too, else an empty text; None if
    the line ends before the string."""
    end, char = quote, (yield)
    if char == quote:
        char = yield
        if char != quote:  # the string is empty
            return char
        end, char = 3 * quote, (yield)
    run = 0
    while True:
        if char == quote:
            run += 1
            if run == len(end):
                return ""
        elif char == "\n" and end == quote:
            return None
        else:
            run = 0
            if char == "\\":
                yield
        char = yield


def _read(raw: str) -> list[TextOrCall]:
    text = raw.removeprefix(_START).removesuffix(_END).strip()
    if len(text) > _LONGEST:
        return [raw]
    try:
        # Python reads a backslash that begins no escape as itself, but with a warning: double it.
        text = _ESCAPE.sub(lambda escape: escape[0] if escape[1] in _ESCAPES else "\\" + escape[0], text)
        tree = ast.parse(text, mode="eval").body
        calls = [_call(item) for item in tree.elts] if isinstance(tree, ast.List) else []
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return [raw]
    return [*calls] or [raw]


def _call(node: ast.expr) -> ToolCall:
    """Return a syntax node as a call; raises ValueError if it is not one."""
    prefix = ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):  # a name with a hyphen in it
        prefix = f"{_name(node.left)}-"
        node = node.right
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    arguments: dict[str, Any] = {}
    for argument in node.keywords:
        value = _value(argument.value)
        added = value if argument.arg is None else {argument.arg: value}
        if not isinstance(added, dict) or arguments.keys() & added.keys():
            raise ValueError("** of a non-dict, or a repeated argument")
        arguments |= added
    call = make_call(prefix + _name(node.func), arguments)
    if call is None:
        raise ValueError("arguments that JSON cannot hold")
    return call


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return f"{_name(node.left)}-{_name(node.right)}"
    raise ValueError("not a name")


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str | bool | int | float)):
        return node.value
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _value(node.operand)
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _value(key) for key in node.keys]
        if all(isinstance(key, str) for key in keys):
            return dict(zip(keys, (_value(item) for item in node.values), strict=True))
    raise ValueError("not a literal")


_OPENINGS = (Opening(_START, lambda: until(_END), _read), Opening("[", _call_list, _read, at_line_start=True))
