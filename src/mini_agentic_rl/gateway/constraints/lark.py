"""The form of an answer as a grammar in llguidance's dialect of Lark.

Between the tokens of JSON there may be one space, or a line break with an indentation: enough for compact and for
indented JSON, and bounded, so that a model cannot write white space until its tokens are used up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Final

from .rules import AnswerRule, CallRule, ValueRule

_WHITE_SPACE: Final = r"\n {0,24}| "


def schema_with_options(value: ValueRule) -> str:
    """The schema as the library takes it: with options inside, put in last so that a request cannot set them."""
    schema = json.loads(value.schema)
    schema["x-guidance"] = {"whitespace_pattern": _WHITE_SPACE, "lenient": not value.strict}
    return json.dumps(schema)


def answer_grammar(rule: AnswerRule, special: Mapping[str, int], end_ids: frozenset[int]) -> str:
    """The grammar of a whole answer.

    Args:
        rule: the form of the answer.
        special: ids of the special tokens, by their names: the model emits these tokens, not the letters of the name.
        end_ids: ids that end an answer.
    """
    answers: list[str] = []
    lines: list[str] = []
    if rule.value is not None:
        answers.append("value")
        lines.append(f"value: %json {schema_with_options(rule.value)}")
    if rule.calls:
        lines.append("call: " + " | ".join(f"call_{index}" for index in range(len(rule.calls))))
        for index, call in enumerate(rule.calls):
            lines += _call(index, call, rule.opening or "", special)
    if rule.opening is not None:
        answers.append("(opened call)* text" if rule.joint is not None else "opened call | text")
        lines += [f"opened: {_until('opening', rule.opening, special)}", "text: (TEXT | special)*"]
        lines += _lazy("opening", rule.opening, special)
    elif rule.calls:
        answers.append("call" if rule.joint is None else f"call ({_literal(rule.joint, special)} call)*")
    start = " | ".join(answers)
    tags = rule.thought
    if tags is not None and rule.opening is not None and not rule.thought_begun and tags.open not in special:
        tags = None  # nothing tells this thought from other free text
    if tags is not None:
        opens = "" if rule.thought_begun else _literal(tags.open, special)
        start = f"thought{'' if rule.thought_begun else '?'} ({start})"
        lines += [f"thought: {opens} {_until('thought', tags.close, special)} /\\n{{1,2}}/?"]
        lines += _lazy("thought", tags.close, special)
    if rule.opening is not None or tags is not None:
        marks = {rule.opening, *(() if tags is None else (tags.open, tags.close))}
        lines += _text({id_ for name, id_ in special.items() if id_ not in end_ids and name not in marks})
    return "\n".join(["%llguidance {}", f"start: {start}", *lines, ""])


def _call(index: int, call: CallRule, opening: str, special: Mapping[str, int]) -> list[str]:
    parts = [
        _literal(call.before.removeprefix(opening), special),
        f"arguments_{index}",
        _literal(call.after, special),
    ]
    return [
        f"call_{index}: {' '.join(part for part in parts if part)}",
        f"arguments_{index}: %json {schema_with_options(call.arguments)}",
    ]


def _text(ids: Collection[int]) -> list[str]:
    """Free text, and the special tokens that may stand in it: all that neither end the answer nor shape it."""
    return ["TEXT: /(.|\\n)+/", f"special: <[{','.join(map(str, sorted(ids)))}]>" if ids else "special: TEXT"]


def _until(name: str, mark: str, special: Mapping[str, int]) -> str:
    """Free text up to and with the first `mark`."""
    last = f"TEXT? {_literal(mark, special)}" if mark in special else f"until_{name}"
    return f"(TEXT? special)* {last}"


def _lazy(name: str, mark: str, special: Mapping[str, int]) -> list[str]:
    """What `_until` needs: text that ends as soon as it ends with `mark`."""
    return [] if mark in special else [f"until_{name}[lazy]: /(.|\\n)*/ {_literal(mark, special)}"]


def _literal(text: str, special: Mapping[str, int]) -> str:
    """`text` as a sequence of strings and special tokens; empty for no text."""
    if not special:
        return json.dumps(text, ensure_ascii=False) if text else ""
    longest_first = sorted(special, key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
    return " ".join(
        f"<[{special[part]}]>" if part in special else json.dumps(part, ensure_ascii=False) for part in parts if part
    )
