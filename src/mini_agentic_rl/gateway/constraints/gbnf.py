"""GBNF, the grammars of llama.cpp (and the EBNF of other servers), as llguidance's dialect of Lark.

Rules that do not recur become terminals, which are matched as one regular expression; the others stay rules, so that
what is a plain string in them is matched as a whole. Work is linear in the text.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|\#[^\n]*) | (?P<rule>[\w-]+)\s*::= | (?P<name>[a-zA-Z_][\w-]*) | (?P<any>\.)
    | "(?P<literal>(?:[^"\\\n]|\\.)*)" | \[(?P<set>(?:[^\]\\\n]|\\.)+)\] | (?P<other>[|()*+?]|\{[\d,\ ]{1,20}\})""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_IN_SET: Final = re.compile(r"\\.|[\[&~/]", re.DOTALL)
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t"}
_ROOT: Final = "root"


class GbnfError(ValueError):
    """The text is no GBNF; the message says where."""


def lark_of(text: str) -> str:
    """Return the grammar in Lark, its `root` as the rule `start`.

    Raises:
        GbnfError: it cannot be read, or refers to a rule that it does not have.
    """
    rules: dict[str, list[tuple[str, str]]] = {}
    at, body = 0, None
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found.end() == at:
            raise GbnfError(f"line {text.count(chr(10), 0, at) + 1}: cannot read {text[at : at + 20]!r}")
        at, kind = found.end(), found.lastgroup or ""
        if kind == "rule":
            if found["rule"] in rules:
                raise GbnfError(f"the rule {found['rule']!r} is there twice")
            body = rules[found["rule"]] = []
        elif kind != "space":
            if body is None:
                raise GbnfError(f"it begins with {text[:20]!r}, not with a rule")
            body.append((kind, found[kind]))
    for name in [_ROOT, *(value for body in rules.values() for kind, value in body if kind == "name")]:
        if name not in rules:
            raise GbnfError(f"there is no rule {name!r}")
    flat = _not_recurring(rules)
    names = {name: f"T{index}" if name in flat else f"r{index}" for index, name in enumerate(rules)}
    lines = [f"{names[name]}: {' '.join(_part(*part, names) for part in body)}" for name, body in rules.items()]
    return "\n".join([f"start: {names[_ROOT]}", *lines, ""])


def _not_recurring(rules: dict[str, list[tuple[str, str]]]) -> set[str]:
    """Return the rules from which no rule is reached that reaches itself."""
    users: dict[str, set[str]] = {name: set() for name in rules}
    for name, body in rules.items():
        for kind, value in body:
            if kind == "name":
                users[value].add(name)
    left = {name: len({value for kind, value in body if kind == "name"}) for name, body in rules.items()}
    ready = deque(name for name, count in left.items() if not count)
    found = set()
    while ready:
        name = ready.popleft()
        found.add(name)
        for user in users[name]:
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    return found


def _part(kind: str, value: str, names: dict[str, str]) -> str:
    if kind == "name":
        return names[value]
    if kind == "any":
        return r"/(.|\n)/"
    if kind == "literal":
        return json.dumps(_ESCAPE.sub(_letter, value), ensure_ascii=False)
    if kind == "set":  # in a set of Rust's regular expressions, some more letters have a meaning
        return f"/[{_IN_SET.sub(lambda one: one[0] if len(one[0]) > 1 else chr(92) + one[0], value)}]/"
    return value.replace(" ", "")


def _letter(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code is None:
        return _LETTERS.get(escape[4], escape[4])
    return chr(int(code, 16)) if int(code, 16) < 0x110000 else "\ufffd"
