"""Tool calls as tags around each argument, as Qwen3.5, Qwen3-Coder, GLM 4.5, MiniMax M2 and others write them.

<tool_call>
<function=calculate>
<parameter=expression>
2+2
</parameter>
</function>
</tool_call>

The texts around names and values differ between models. They are extracted from a call that the chat template has
rendered (`XmlFormat.read_off`). Values are not quoted: the tool's parameters decide whether `42` is text or a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from .base import (
    CallScanner,
    Opening,
    TextOrCall,
    Tool,
    ToolCall,
    ToolFormat,
    json_text,
    make_call,
    read_json,
    tools_section,
    until,
)

_WORDS = {"True": True, "False": False, "None": None, "null": None}
_NESTED = ("anyOf", "oneOf", "allOf")
_PROBE = re.compile(
    r"(?P<before>\s*\S.*?)probe(?P<opening>\s*\S.*?)k1(?P<assign>\s*\S.*?)v1"
    r"(?P<between>\s*\S.*?)k2(?P=assign)v2(?P<closing>\s*\S.*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class XmlFormat(ToolFormat):
    """The texts around names and values. The defaults are those of Qwen3.5."""

    before: str = "<tool_call>\n<function="
    """Before the name of the tool."""
    opening: str = ">\n<parameter="
    """Between the name of the tool and the name of its first argument."""
    assign: str = ">\n"
    """Between the name of an argument and its value."""
    between: str = "\n</parameter>\n<parameter="
    """Between a value and the name of the next argument."""
    closing: str = "\n</parameter>\n</function>\n</tool_call>"
    """After the last value."""
    empty: str = ">\n</function>\n</tool_call>"
    """After the name of the tool if there are no arguments."""
    joint: str = "\n"
    """Between two calls."""
    around: tuple[str, str] = ("", "")
    """Before the first and after the last call, where all calls share a tag."""
    words: bool = False
    """True if `true`, `false` and `null` are written as in Python."""
    markers: Sequence[str] = ()

    name = "xml"

    @classmethod
    def read_off(cls, write: Callable[[Sequence[Mapping[str, Any]]], str], special: Iterable[str]) -> XmlFormat | None:
        """Return the format in which a chat template writes calls; None if it is not of this kind.

        Args:
            write: returns the text of calls of the tool `probe` with these arguments; empty if it cannot.
            special: texts of the special tokens of the vocabulary.
        """
        match = _PROBE.fullmatch(write([{"k1": "v1", "k2": "v2"}]))
        if match is None:
            return None
        texts = match.groupdict()
        start, assigned = f"{texts['before']}probe", f"{texts['opening']}k1{texts['assign']}"
        none, flag, twice = write([{}]), write([{"k1": True}]), write([{}, {}])
        word = flag.removeprefix(start + assigned).removesuffix(texts["closing"])
        if not none.startswith(start) or word not in ("true", "True"):
            return None
        texts["empty"] = none.removeprefix(start)
        joint, around = "\n", ("", "")
        if twice and twice.startswith(none) and twice.endswith(none):
            joint = twice[len(none) : -len(none)]
        elif twice:  # all calls share an outer tag
            first, second, third = twice.partition("probe")[2].partition("probe")
            tag = texts["before"].rfind("<")
            head, texts["before"] = texts["before"][:tag], texts["before"][tag:]
            inner = first.removesuffix(texts["before"])
            end = texts["empty"].removeprefix(inner.rstrip())
            if (
                not head
                or not second
                or third != texts["empty"]
                or inner == first
                or not texts["closing"].endswith(end)
            ):
                return None
            joint, around = inner[len(inner.rstrip()) :], (head, end)
            texts |= {name: texts[name].removesuffix(end) for name in ("closing", "empty")}
        return cls(
            **texts,
            joint=joint,
            around=around,
            words=word == "True",
            markers=tuple(name for name in special if any(name in text for text in (*texts.values(), *around))),
        )

    def section(self, tools: Sequence[Tool]) -> str:
        return tools_section(tools, self.format_call("NAME", {"PARAMETER": "..."}))

    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        return self.around[0] + self.joint.join(self._written_call(*call) for call in calls) + self.around[1]

    def format_result(self, content: str) -> str:
        return f"<tool_response>\n{content}\n</tool_response>"

    def forced_prefix(self, name: str | None) -> str:
        before = self.around[0] + self.before
        if name is None:  # a tokenizer may join a punctuation mark to the letters behind it
            return re.sub(r"[^\w\s>\]]+\Z", "", before)
        closed = re.match(r".*[\s>\]]", _common_start(self.opening, self.empty), re.DOTALL)
        return before + name + (closed.group() if closed else self.opening)

    def scanner(self, tools: Sequence[Tool] = ()) -> CallScanner:
        last = self.around[1].split()[-1] if self.around[1].strip() else self._last
        first = (self.around[0] + self.before).split()[0]
        return CallScanner([Opening(first, lambda: until(last), _Reader(self, tools).read)])

    @property
    def _last(self) -> str:
        """End of every call."""
        return _common_start(self.closing[::-1], self.empty[::-1])[::-1].split()[-1]

    def _written_call(self, name: str, arguments: Any) -> str:
        if not isinstance(arguments, Mapping):
            return f"{self.forced_prefix(name).removeprefix(self.around[0])}{arguments}\n{self._last}"
        if not arguments:
            return self.before + name + self.empty
        written = []
        for key, value in arguments.items():
            python = self.words and not isinstance(value, str | list | tuple | Mapping)
            written.append(f"{key}{self.assign}{str(value) if python else json_text(value)}")
        return self.before + name + self.opening + self.between.join(written) + self.closing


class _Reader:
    """Reads calls. White space may differ from the template's, except next to values."""

    def __init__(self, form: XmlFormat, tools: Sequence[Tool]) -> None:
        self._parameters = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
        self._around = [text.strip() for text in form.around]
        self._call_end = form._last
        self._before = re.compile(rf"\s*{_flexible(form.before)}")
        self._opening = re.compile(_flexible(form.opening))
        self._empty = re.compile(rf"{_flexible(form.empty)}\s*\Z")
        self._assign = re.compile(_flexible(form.assign))
        self._end = re.compile(rf"(?P<next>{_flexible(form.between)})|{_flexible(form.closing)}\s*\Z")
        self._lead = form.assign[len(form.assign.rstrip()) :]
        self._trail = form.closing[: -len(form.closing.lstrip())]

    def read(self, raw: str) -> list[TextOrCall]:
        """Return the calls in a block, or its text."""
        texts = [raw]
        if self._around[0]:
            inner = raw.removeprefix(self._around[0]).removesuffix(self._around[1])
            *texts, rest = inner.split(self._call_end)
            texts = [] if rest.strip() else [text + self._call_end for text in texts]
        calls = [self._call(text) for text in texts]
        return [raw] if None in calls or not calls else [call for call in calls if call is not None]

    def _call(self, raw: str) -> ToolCall | None:
        before = self._before.match(raw)
        opening = before and (self._opening.search(raw, before.end()) or self._empty.search(raw, before.end()))
        if not before or not opening:
            return None
        name = raw[before.end() : opening.start()].strip()
        parameters = self._parameters.get(name)
        arguments: dict[str, Any] = {}
        more, at = opening.re is self._opening, opening.end()
        while more:
            assign = self._assign.search(raw, at)
            end = assign and self._end.search(raw, assign.end())
            if not assign or not end:
                return None
            text = raw[assign.end() : end.start()].removeprefix(self._lead).removesuffix(self._trail)
            key = raw[at : assign.start()].strip()
            arguments[key] = _value(text, _kinds(_child(parameters, "properties", key), parameters))
            more, at = end["next"] is not None, end.end()
        return None if re.search(r"[\s<>]", name) else make_call(name, arguments)


def _common_start(first: str, second: str) -> str:
    pairs = zip(first, second, strict=False)
    return "".join(left for left, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _flexible(text: str) -> str:
    return r"\s*".join(map(re.escape, text.split()))


def _value(text: str, kinds: set[str]) -> Any:
    """Return the value of a text: the text itself if the parameter is text or allows no other type."""
    if kinds == {"string"}:
        return text
    word = text.strip()
    value = _WORDS[word] if word in _WORDS else read_json(word)
    known = word in _WORDS or value is not None
    return value if known and not isinstance(value, str) and (not kinds or _kinds_of(value) & kinds) else text


def _kinds(schema: Any, root: Any, seen: tuple[str, ...] = ()) -> set[str]:
    """Return the JSON types that a schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        return _kinds(_child(root, *reference.removeprefix("#/").split("/")), root, (*seen, reference))
    given = schema.get("type")
    kinds = {given} if isinstance(given, str) else {kind for kind in _list(given) if isinstance(kind, str)}
    if not kinds:
        values = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else ())]
        kinds = {kind for value in values for kind in _kinds_of(value)}
    return kinds.union(*(_kinds(inner, root, seen) for name in _NESTED for inner in _list(schema.get(name))))


def _kinds_of(value: Any) -> set[str]:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"integer", "number"}
    names = {bool: "boolean", float: "number", list: "array", dict: "object", str: "string"}
    return {names.get(type(value), "null")}


def _child(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
