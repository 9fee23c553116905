"""Random identifiers, under agent-lightning's name `utils.id`."""

from __future__ import annotations

import secrets


def generate_id(length: int) -> str:
    """Return a random string of `length` hexadecimal digits."""
    return secrets.token_hex((length + 1) // 2)[:length]
