"""Passwords and keys, taken out of what is shown: one function for every log line, error, metric and report.

A URL may hold a password (`https://user:password@host`) or a key (`?api_key=…`), and a text may quote a header.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote_plus

HIDDEN: Final = "***"

_USER: Final = re.compile(r"(?<=://)[^\s/?#\"'<>]*@")
_QUERY: Final = re.compile(
    r"([?&;](?:[\w.-]{0,40}(?:api[_-]?key|token|secret|password|passwd|credential|signature)[\w.-]{0,40}|key|pwd|sig|auth|code)=)"
    r"[^&;\s\"'#<>]+",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(
    r"((?:authorization|x-api-key|api-key)[\"']?\s{0,5}[:=]\s{0,5}b?[\"']?(?:bearer\s{1,5}|basic\s{1,5})?|\bbearer\s{1,5})(?!bearer\b|basic\b|\*)[^\s\"',;]{4,}",
    re.IGNORECASE,
)


_NO_PORT: Final = re.compile(r":(?!\d{1,5}(?:[,/?\]]|$))(?=[^\]/]*(?:/|$))[^,/?\]]+")
_ENDS: Final = re.compile(r"[:/@?#]")
_SHORT: Final = 3
"""Characters of a part that no text is searched for: it would be found everywhere."""
_PART: Final = 8
"""Characters of a secret that are hidden wherever they stand together."""
_NAME: Final = re.compile(
    r"(?:^|[_-])(?:api[_-]?key|apikey|secret|password|passwd|authorization|auth[_-]token|access[_-]token)$|^token$",
    re.IGNORECASE,
)
"""Names whose value is a key, whatever it looks like."""


def without_secrets(text: str) -> str:
    """Return a text whose URLs have no user, password or key, and whose quoted headers have no key.

    The time that it takes is proportional to the text's length.
    """
    if "://" in text:
        text = _USER.sub(f"{HIDDEN}@", text)
    if "=" in text:
        text = _QUERY.sub(rf"\g<1>{HIDDEN}", text)
    return _HEADER.sub(rf"\g<1>{HIDDEN}", text)


def shown_address(address: str) -> str:
    """Return one address as it may be shown: without user and password, however badly they are written, and without
    the keys of its query."""
    scheme, found, rest = address.partition("://")
    if not found:
        return without_secrets(address)
    _, at, rest = rest.rpartition("@")
    # Without an @ a password stands where the port is.
    rest = _NO_PORT.sub(f":{HIDDEN}", rest) if not at else rest
    return without_secrets(f"{scheme}://{HIDDEN}@{rest}" if at else f"{scheme}://{rest}")


def without_those_of(address: str, text: str) -> str:
    """Return a text, as a library's message about an address, without the parts of user and password that it quotes."""
    start = address.partition("://")[2]
    user = start.rpartition("@")[0] or start.partition("/")[0]
    for part in sorted({user, *_ENDS.split(user)}, key=len, reverse=True):
        for one in (part, unquote_plus(part)):
            if len(one) > _SHORT:
                text = text.replace(one, HIDDEN)
    return without_secrets(text)


def without_parts_of(secret: str, text: str) -> str:
    """Return a text without a secret and without any eight characters of it that stand together; one that is shorter is
    hidden as a whole, if it has more than three."""
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
    """Return a value of JSON's types with every text in it redacted, as `without_secrets` does, and texts that have the
    name of a key hidden."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {
            key: HIDDEN if one and isinstance(one, str) and _NAME.search(str(key)) else without_secrets_within(one)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets_within(one) for one in value]
    return value
