"""Redaction of passwords and keys in every log line, error, metric and report.

A URL may contain a password (`https://user:password@host`) or a key (`?api_key=…`), and a text may quote a header.
`remember_secrets` finds the keys in the settings of a process, which are then hidden by their value in every text.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote_plus

HIDDEN: Final = "***"

_USER: Final = re.compile(r"(?<=://)[^\s/?#\"'<>]*@")
_QUERY: Final = re.compile(
    r"([?&;](?:[\w.-]{0,40}(?:api[_-]?key|token|secret|password|passwd|credential|signature)[\w.-]{0,40}|key|pwd|sig|auth|code)=)"
    r"[^&;\s\"'#<>]+",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(
    r"((?:authorization|x-api-key|api-key)[\"']?\s{0,5}[:=]\s{0,5}(?:b?[\"'])?(?:bearer\s{1,5}|basic\s{1,5})?|\bbearer\s{1,5})(?!bearer\b|basic\b|\*)[^\s\"',;]{4,}",
    re.IGNORECASE,
)


_BAD_PORT: Final = re.compile(r":(?!\d{1,5}(?:[,/?\]]|$))(?=[^\]/]*(?:/|$))[^,/?\]]+")
_SEPARATORS: Final = re.compile(r"[:/@?#]")
_SHORT: Final = 3
"""Length up to which a part of a secret is not searched for: it would be found everywhere."""
_PART: Final = 8
"""Length of a part of a secret that is hidden."""
_NAME: Final = re.compile(
    r"(?:^|[_-])(?:api[_-]?key|apikey|secret|password|passwd|authorization|auth[_-]token|access[_-]token)$|^token$",
    re.IGNORECASE,
)
"""Names of settings whose value is a key."""

_KEY: Final = (
    r"(?:[A-Za-z0-9]{1,40}[_-]){0,8}"
    r"(?:api_?key|key|token|secret|pass|pwd|pat|credentials?|auth|authorization|cookie|dsn|webhook"
    r"|[A-Za-z0-9]{0,40}(?:apikey|token|secret|passw(?:or)?d|passphrase))(?:[_-][A-Za-z0-9]{1,40}){0,8}"
)
"""Names of environment variables and options whose value is a key."""
_VARIABLE: Final = re.compile(_KEY, re.IGNORECASE)
_ASSIGNED: Final = re.compile(rf"({_KEY}=).+", re.IGNORECASE | re.DOTALL)
_OPTION: Final = re.compile(rf"(?<![\w-])(?:--?{_KEY}(?:=|\s{{1,5}})|{_KEY}=)[\"']?([^\s\"']+)", re.IGNORECASE)
"""A key in the options of a command."""
_IN_TEXT: Final = re.compile(
    r"\b(?:authorization|x-[\w-]{1,40}|[\w-]{0,40}(?:key|token|secret|password)(?=\\?[\"']))\\?[\"']?\s{0,5}:\s{0,5}\\?[\"']?"
    r"(?:(?:bearer|basic|token)\s{1,5})?([^\s\"',;\\]+)"
    r"|://[^\s/?#\"'<>:@]*:([^\s/?#\"'<>@]+)@"
    r"|\b((?:[sprg]k|hf|gh[opsur]|github_pat|glpat|xox[abeoprs])[_-][\w-]{12,}|AKIA[A-Z0-9]{12,}|AIza[\w-]{20,})",
    re.IGNORECASE,
)
"""The key of a header or of a JSON object, the password of a URL, and keys of well-known services."""
_PLAIN: Final = re.compile(r"[\d.,:+-]*|[a-z_.-]*|[./~].*|[a-z][\w+.-]*://.*", re.IGNORECASE | re.DOTALL)
"""A number, a word, a path or an address: a value that is no key unless its name says so."""
_LONG: Final = 8
"""Length from which a value is searched for within words too."""
_known: tuple[frozenset[str], re.Pattern[str] | None] = (frozenset(), None)


def remember_secrets(settings: Any) -> None:
    """Hide the keys in these settings, and in the environment of this process, from now on: `without_secrets` removes
    them from every text.

    Keys are the values of settings and variables with such names, the key options of commands, and the values of
    environment variables for agents and runners unless they are plainly something else.
    """
    global _known
    keys = {value for name, value in os.environ.items() if _VARIABLE.fullmatch(name) and _may_be_key(value)}
    keys |= {value for value in _keys_in(settings) if len(value) > (2 * _SHORT if _PLAIN.fullmatch(value) else _SHORT)}
    if keys <= _known[0]:
        return
    known = _known[0] | keys
    forms = {form for value in known for form in (value, json.dumps(value)[1:-1], quote(value, safe=""))}
    words = [
        re.escape(form) if len(form) >= _LONG else rf"(?<!\w){re.escape(form)}(?!\w)"
        for form in sorted(forms, key=len, reverse=True)
    ]
    _known = known, re.compile("|".join(words))


def _keys_in(value: Any, name: str = "") -> Iterator[str]:
    """Yield the keys in settings (JSON values) or in environment variables."""
    if isinstance(value, Mapping):
        is_environment = name.lower() in ("env", "env_vars")
        for key, item in value.items():
            if is_environment and isinstance(item, str):
                yield from _keys_in([f"{key}={item}"], "env")
            else:
                yield from _keys_in(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            variable, equals, text = str(item).partition("=")
            if name.endswith("env") and equals:
                if _VARIABLE.fullmatch(variable) or _may_be_key(text):
                    yield text
                yield from _keys_in(text)
            else:
                yield from _keys_in(item, name)
    elif isinstance(value, str):
        if _NAME.search(name):
            yield value
        yield from (match[1] for match in _OPTION.finditer(value))
        yield from (key for match in _IN_TEXT.finditer(value) if _may_be_key(key := match[match.lastindex or 0]))


def _may_be_key(value: str) -> bool:
    return len(value) >= _LONG and not _PLAIN.fullmatch(value)


def without_secrets(text: str) -> str:
    """Return a text without users, passwords and keys in URLs, keys in quoted headers, and remembered keys.

    It takes time proportional to the text's length.
    """
    if (known := _known[1]) is not None:
        text = known.sub(HIDDEN, text)
    if "://" in text:
        text = _USER.sub(f"{HIDDEN}@", text)
    if "=" in text:
        text = _QUERY.sub(rf"\g<1>{HIDDEN}", text)
    return _HEADER.sub(rf"\g<1>{HIDDEN}", text)


def shown_address(address: str) -> str:
    """Return an address without user, password and the keys of its query, even if it is malformed."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return without_secrets(address)
    _, at, rest = rest.rpartition("@")
    # Without an @ a password is in the place of the port.
    rest = _BAD_PORT.sub(f":{HIDDEN}", rest) if not at else rest
    return without_secrets(f"{scheme}://{HIDDEN}@{rest}" if at else f"{scheme}://{rest}")


def without_those_of(address: str, text: str) -> str:
    """Return a library's message about an address, without the parts of user and password that it quotes."""
    start = address.partition("://")[2]
    user = start.rpartition("@")[0] or start.partition("/")[0]
    for part in sorted({user, *_SEPARATORS.split(user)}, key=len, reverse=True):
        for item in (part, unquote_plus(part)):
            if len(item) > _SHORT:
                text = text.replace(item, HIDDEN)
    return without_secrets(text)


def without_parts_of(secret: str, text: str) -> str:
    """Return a text without a secret and without any eight successive characters of it. A shorter secret is hidden as a
    whole if it has more than three characters."""
    size = min(_PART, len(secret))
    if size <= _SHORT:
        return text
    parts = {secret[start : start + size] for start in range(len(secret) - size + 1)}
    shown: list[str] = []
    hidden_to = 0
    for at in range(len(text)):
        if text[at : at + size] in parts:
            if hidden_to < at or not at:
                shown.append(HIDDEN)
            hidden_to = at + size
        if at >= hidden_to:
            shown.append(text[at])
    return "".join(shown)


def without_secrets_within(value: Any) -> Any:
    """Return a JSON value with every string redacted by `without_secrets`, and strings hidden whose name, or NAME in
    `NAME=VALUE`, is that of a key."""
    if isinstance(value, str):
        assigned = _ASSIGNED.fullmatch(value)
        return f"{assigned[1]}{HIDDEN}" if assigned and assigned[1].isupper() else without_secrets(value)
    if isinstance(value, dict):
        return {
            without_secrets(key) if isinstance(key, str) else key: (
                HIDDEN if item and isinstance(item, str) and _NAME.search(str(key)) else without_secrets_within(item)
            )
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets_within(item) for item in value]
    return value
