"""The header with which clients send an API key."""

from __future__ import annotations

from typing import Final

from .errors import UserError

UNSENDABLE: Final = (
    "an API key begins or ends with a space, or contains a line break or another invisible character, which no header "
    "can contain: give it without"
)


def is_sendable(key: str) -> bool:
    """Return True if a header can contain the key."""
    return key == key.strip() and key.isprintable()


def bearer_header(key: str | None) -> dict[bytes, bytes]:
    """Return the header with which a client sends its key; no header without a key.

    Raises:
        UserError: no header can contain the key.
    """
    if key is None:
        return {}
    if not is_sendable(key):
        raise UserError(UNSENDABLE, setting="api_key")
    return {b"Authorization": f"Bearer {key}".encode()}
