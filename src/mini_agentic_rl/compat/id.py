"""Random identifiers, under the older name `utils.id`."""

from __future__ import annotations

import secrets


def generate_id(length: int) -> str:
    """Return a random text of `length` hexadecimal digits."""
    return secrets.token_hex((length + 1) // 2)[:length]
