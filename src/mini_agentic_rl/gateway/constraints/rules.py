"""The form that a chat request demands of its answer, as a grammar in llguidance's dialect of Lark.

A form is JSON with a schema, text with a grammar, tool calls, or text with well-formed calls in it. The tool format
writes the text around the arguments of calls (`ToolFormat.shape`); one whose arguments are not JSON cannot be demanded.

Between the tokens of JSON one space is allowed, or a line break with indentation: enough for compact and indented JSON,
and a model cannot use up its tokens with white space.

GBNF, the grammar format of llama.cpp (and the EBNF of other servers), is translated to Lark. Rules that are not
recursive become terminals, which are matched as one regular expression. The translation is linear in the text.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ...http import BadRequestError
from ..dialects import AnswerForm, ChatRequest
from ..render.decoding import ThinkTags
from ..tool_formats import ToolFormat

_GBNF_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|\#[^\n]*) | (?P<rule>[\w-]+)\s*::= | (?P<name>[a-zA-Z_][\w-]*) | (?P<any>\.)
    | "(?P<literal>(?:[^"\\\n]|\\.)*)" | \[(?P<set>(?:[^\]\\\n]|\\.)+)\] | (?P<other>[|()*+?]|\{[\d,\ ]{1,20}\})""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_IN_SET: Final = re.compile(r"\\.|[\[&~/]", re.DOTALL)
_ESCAPED_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t"}
_ROOT: Final = "root"


class GbnfError(ValueError):
    """The text is not GBNF."""


def lark_of(text: str) -> str:
    """Return the grammar in Lark, with `root` as the rule `start`.

    Raises:
        GbnfError: it is malformed, or refers to an unknown rule.
    """
    rules: dict[str, list[tuple[str, str]]] = {}
    at, body = 0, None
    while at < len(text):
        token = _GBNF_TOKEN.match(text, at)
        if token is None or token.end() == at:
            raise GbnfError(f"line {text.count(chr(10), 0, at) + 1}: cannot read {text[at : at + 20]!r}")
        at, kind = token.end(), token.lastgroup or ""
        if kind == "rule":
            if token["rule"] in rules:
                raise GbnfError(f"the rule {token['rule']!r} is there twice")
            body = rules[token["rule"]] = []
        elif kind != "space":
            if body is None:
                raise GbnfError(f"it begins with {text[:20]!r}, not with a rule")
            body.append((kind, token[kind]))
    for name in [_ROOT, *(value for body in rules.values() for kind, value in body if kind == "name")]:
        if name not in rules:
            raise GbnfError(f"there is no rule {name!r}")
    if not rules[_ROOT]:
        raise GbnfError(f"the rule {_ROOT!r} is empty: give it a text, a set or a rule")
    flat = _not_recursive(rules)
    names = {name: f"T{index}" if name in flat else f"r{index}" for index, name in enumerate(rules)}
    lines = [f"{names[name]}: {' '.join(_lark_part(*part, names) for part in body)}" for name, body in rules.items()]
    return "\n".join([f"start: {names[_ROOT]}", *lines, ""])


def _not_recursive(rules: dict[str, list[tuple[str, str]]]) -> set[str]:
    """Return the rules that reach no recursive rule."""
    users: dict[str, set[str]] = {name: set() for name in rules}
    for name, body in rules.items():
        for kind, value in body:
            if kind == "name":
                users[value].add(name)
    left = {name: len({value for kind, value in body if kind == "name"}) for name, body in rules.items()}
    ready = deque(name for name, count in left.items() if not count)
    flat = set()
    while ready:
        name = ready.popleft()
        flat.add(name)
        for user in users[name]:
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    return flat


def _lark_part(kind: str, value: str, names: dict[str, str]) -> str:
    if kind == "name":
        return names[value]
    if kind == "any":
        return r"/(.|\n)/"
    if kind == "literal":
        return json.dumps(_ESCAPE.sub(_letter, value), ensure_ascii=False)
    if kind == "set":  # sets of Rust's regular expressions have more special characters
        return f"/[{_IN_SET.sub(lambda match: match[0] if len(match[0]) > 1 else chr(92) + match[0], value)}]/"
    return value.replace(" ", "")


def _letter(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code is None:
        return _ESCAPED_LETTERS.get(escape[4], escape[4])
    return chr(int(code, 16)) if int(code, 16) < 0x110000 else "\ufffd"


ANY_OBJECT: Final = '{"type": "object"}'
MAX_SCHEMA_SIZE: Final = 120_000
"""Characters of names and values in all schemas of a request, without annotations. OpenAI has the same bound."""
_ANNOTATIONS: Final = frozenset({"title", "description", "$comment", "examples", "default"})
_TEXT_MARK: Final = "\ufdd2"
"""Separates the letters of a tool's name, so that no special token is read in it; a Unicode noncharacter."""
_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class ValueRule:
    """A JSON value with a schema."""

    schema: str
    """JSON text: its digest blocks the event loop for a fraction of the time that the digest of a dict takes."""
    strict: bool
    """True if the whole schema must hold; otherwise keywords that the grammar cannot express are ignored."""
    field: str
    """The field of the request."""


@dataclass(frozen=True)
class TextRule:
    """Text with a grammar."""

    grammar: str
    """In llguidance's dialect of Lark, with a rule `start`."""
    field: str
    """The field of the request."""


@dataclass(frozen=True)
class CallRule:
    """A call of one tool: literal text with the tool's name (marked as text), arguments, literal text."""

    before: str
    arguments: ValueRule
    after: str


@dataclass(frozen=True)
class AnswerRule:
    """The form of a whole answer: a value or text, or calls, or text with calls in it."""

    value: ValueRule | None = None
    text: TextRule | None = None
    calls: tuple[CallRule, ...] = ()
    joint: str | None = None
    """Text between two calls; None if only one is allowed."""
    opening: str | None = None
    """If set, free text is allowed, and this text begins a call."""
    thought: ThinkTags | None = None
    """Tags around a free thought before the answer; None if thoughts are part of the answer."""
    thought_begun: bool = False
    """True if the prompt opens the thought."""

    @property
    def values(self) -> list[ValueRule]:
        """The JSON values in the answer: the value, or else the arguments of each call."""
        return [*([] if self.value is None else [self.value]), *(call.arguments for call in self.calls)]

    @property
    def field(self) -> str:
        """The field of the request that demands this form."""
        if self.text is not None:
            return self.text.field
        if self.value is not None:
            return self.value.field.partition(".")[0]
        return "tools" if self.opening is not None else "tool_choice"


def answer_rule(
    request: ChatRequest, tool_format: ToolFormat, thought: ThinkTags | None = None, thought_begun: bool = False
) -> AnswerRule | None:
    """Return the form that `request` demands; None if there is none, or `tool_format` has no grammar for it.

    Args:
        request: the request.
        tool_format: how calls are written.
        thought: tags around thoughts, if they are separated from the answer.
        thought_begun: True if the prompt opens the thought.

    Raises:
        BadRequestError: fields contradict each other, or `tool_format` cannot serve them together.
    """
    _check_size(request)
    value, text = _form_rules(request.form)
    calls = _call_rules(request, tool_format)
    rule: AnswerRule | None = None
    if request.must_call:
        rule = AnswerRule(calls=calls, joint=_joint(request, tool_format)) if calls else None
    elif request.form is not None:
        rule = AnswerRule(value=value, text=text, calls=calls, joint=_joint(request, tool_format))
        if request.offered_tools and not calls:
            raise BadRequestError(
                f"{rule.field}: tool calls in the form {tool_format.name!r} are no JSON, so tools cannot be offered "
                "beside it; send tool_choice 'none', or serve the model with another tool format",
                param=rule.field,
            )
    elif calls and any(tool.function.strict for tool in request.tools or ()):
        # A marker begins a call inside free text, or else the beginning of the call.
        begun = (marker for marker in tool_format.markers if calls[0].before.startswith(marker))
        opening = next(begun, tool_format.forced_prefix(None))
        rule = AnswerRule(calls=calls, joint=_joint(request, tool_format), opening=opening)
    for name, length in (("ignore_eos", request.ignore_eos), ("min_tokens", request.min_tokens)):
        if rule is not None and length:
            raise BadRequestError(f"{name}: the form set by {rule.field} determines where the answer ends", param=name)
    return None if rule is None else replace(rule, thought=thought, thought_begun=thought_begun)


def _check_size(request: ChatRequest) -> None:
    """Refuse schemas that are too large before they are processed."""
    form = request.form
    if not (form or request.must_call or any(tool.function.strict for tool in request.tools or ())):
        return
    left = MAX_SCHEMA_SIZE - _size(None if form is None else form.value, MAX_SCHEMA_SIZE)
    field = "tools" if form is None else form.field
    for index, tool in enumerate(request.tools or ()):
        if left < 0:
            break
        field = f"tools[{index}].function.parameters"
        left -= len(tool.function.name) + _size(tool.function.parameters, left)
    if left < 0:
        raise BadRequestError(
            f"{field}: the schemas of the request have more than {MAX_SCHEMA_SIZE} characters in names and values",
            param=field,
        )


def _size(schema: Any, bound: int) -> int:
    """Return the number of characters in names and values; any number above `bound` if there are more."""
    size, rest = 0, [schema]
    while rest and size <= bound:
        value = rest.pop()
        size += 1
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, Mapping):
            for name, child in value.items():
                size += len(name)
                # A property may have such a name too; then its value is a schema.
                if name not in _ANNOTATIONS or isinstance(child, Mapping):
                    rest.append(child)
        elif isinstance(value, list):
            size += len(value)
            rest += value
    return size


def _form_rules(form: AnswerForm | None) -> tuple[ValueRule | None, TextRule | None]:
    """Return the demanded form as a rule of a value or of a text; raises BadRequestError for a malformed grammar."""
    if form is None:
        return None, None
    if form.kind == "json":
        schema = ANY_OBJECT if form.value is None else json.dumps(form.value)
        return ValueRule(schema, form.strict, form.field), None
    if form.kind == "choice":
        grammar = "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in form.value)
    elif form.kind == "regex":
        grammar = f"start: /{_whole(form.value)}/"
    else:
        try:
            grammar = lark_of(form.value) if "::=" in form.value else form.value
        except GbnfError as error:
            raise BadRequestError(f"{form.field}: {error}", param=form.field) from error
    return None, TextRule(grammar, form.field)


def _whole(pattern: str) -> str:
    """Return a pattern as it is written between slashes. The whole answer is matched, with or without anchors."""
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2:
        pattern = pattern[:-1]
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\/", pattern).replace("\n", r"\n")


def _call_rules(request: ChatRequest, tool_format: ToolFormat) -> tuple[CallRule, ...]:
    """Return the allowed calls; empty if the tool format has no shape."""
    if request.tool_choice == "none":
        return ()
    rules = []
    for index, tool in enumerate(request.tools or ()):
        function = tool.function
        if request.must_call_name not in (None, function.name):
            continue
        # Arguments are an object even if the schema does not say so.
        schema = _NO_PARAMETERS if function.parameters is None else {"type": "object", **function.parameters}
        shape = tool_format.shape(_TEXT_MARK.join(["", *function.name, ""]))
        if shape is None:
            return ()
        arguments = ValueRule(json.dumps(schema), bool(function.strict), f"tools[{index}].function.parameters")
        rules.append(CallRule(shape[0], arguments, shape[1]))
    return tuple(rules)


def _joint(request: ChatRequest, tool_format: ToolFormat) -> str | None:
    """Return the text between calls, if several are allowed and the format writes them one after another."""
    named = request.must_call and request.tool_choice != "required"
    if named or request.parallel_tool_calls is False:
        return None
    single = tool_format.format_calls([("f", "{}")])
    double = tool_format.format_calls([("f", "{}"), ("f", "{}")])
    if len(double) < 2 * len(single) or not (double.startswith(single) and double.endswith(single)):
        return None
    return double[len(single) : len(double) - len(single)]


_WHITE_SPACE: Final = r"\n {0,24}| "


def schema_with_options(value: ValueRule) -> str:
    """Return the schema as JSON with the library's options, which a request cannot set."""
    options = {"whitespace_pattern": _WHITE_SPACE, "lenient": not value.strict}
    return json.dumps({**json.loads(value.schema), "x-guidance": options})


def answer_grammar(rule: AnswerRule, special: Mapping[str, int], end_ids: Collection[int]) -> str:
    """Return the grammar of a whole answer; as JSON if it includes a grammar of the request.

    Args:
        rule: the form of the answer.
        special: ids of special tokens by name; the model emits the token, not the letters of its name.
        end_ids: ids that end an answer.
    """
    answers: list[str] = []
    lines: list[str] = []
    if rule.text is not None:
        answers.append("@form")
    if rule.value is not None:
        answers.append("value")
        lines.append(f"value: %json {schema_with_options(rule.value)}")
    if rule.calls:
        lines.append("call: " + " | ".join(f"call_{index}" for index in range(len(rule.calls))))
        for index, call in enumerate(rule.calls):
            before = _literal(call.before.removeprefix(rule.opening or ""), special)
            parts = (before, f"arguments_{index}", _literal(call.after, special))
            lines.append(f"call_{index}: {' '.join(filter(None, parts))}")
            lines.append(f"arguments_{index}: %json {schema_with_options(call.arguments)}")
    if rule.opening is not None:
        answers.append("(opened call)* text" if rule.joint is not None else "opened call | text")
        lines += [f"opened: {_until('opening', rule.opening, special)}", "text: (TEXT | special)*"]
        lines += _lazy("opening", rule.opening, special)
    elif rule.calls:
        answers.append("call" if rule.joint is None else f"call ({_literal(rule.joint, special)} call)*")
    start = " | ".join(answers)
    tags = rule.thought
    if tags is not None and rule.opening is not None and not rule.thought_begun and tags.open not in special:
        tags = None  # the thought cannot be separated from other free text
    if tags is not None:
        opens = "" if rule.thought_begun else _literal(tags.open, special)
        start = f"thought{'' if rule.thought_begun else '?'} ({start})"
        lines += [f"thought: {opens} {_until('thought', tags.close, special)} /\\n{{1,2}}/?"]
        lines += _lazy("thought", tags.close, special)
    if rule.opening is not None or tags is not None:
        marks = {rule.opening, *(() if tags is None else (tags.open, tags.close))}
        # Special tokens in free text: those that neither end nor structure the answer.
        ids = sorted(id_ for name, id_ in special.items() if id_ not in end_ids and name not in marks)
        lines += ["TEXT: /(.|\\n)+/", f"special: <[{','.join(map(str, ids))}]>" if ids else "special: TEXT"]
    text = "\n".join(["%llguidance {}", f"start: {start}", *lines, ""])
    if rule.text is None:
        return text
    return json.dumps({"grammars": [{"lark_grammar": text}, {"name": "form", "lark_grammar": rule.text.grammar}]})


def _until(name: str, mark: str, special: Mapping[str, int]) -> str:
    """Return the expression for free text through the first `mark`."""
    last = f"TEXT? {_literal(mark, special)}" if mark in special else f"until_{name}"
    return f"(TEXT? special)* {last}"


def _lazy(name: str, mark: str, special: Mapping[str, int]) -> list[str]:
    """Return the rule for `_until`: text that ends with its first `mark`."""
    return [] if mark in special else [f"until_{name}[lazy]: /(.|\\n)*/ {_literal(mark, special)}"]


def _literal(text: str, special: Mapping[str, int]) -> str:
    """Return `text` as a sequence of strings and special tokens."""
    longest_first = sorted(special, key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text) if special else [text]
    return " ".join(
        f"<[{special[part]}]>" if part in special else json.dumps(part.replace(_TEXT_MARK, ""), ensure_ascii=False)
        for part in parts
        if part
    )
