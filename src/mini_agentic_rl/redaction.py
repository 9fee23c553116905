"""Passwords and keys, taken out of what is shown: one function for every log line, error, metric and report.

A URL may hold a password (`https://user:password@host`) or a key (`?api_key=…`), and a text may quote a header.
"""

from __future__ import annotations

import re
from typing import Any, Final

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
