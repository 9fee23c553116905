"""Names of teachers that are no folder: the setting `teacher` by its kinds."""

from __future__ import annotations

BASE = "base"
"""The model without its adapter."""
SELF = "self"
"""The policy itself, with more in its context."""


def is_address(teacher: str) -> bool:
    """Return True for the address of a server."""
    return teacher.startswith(("http://", "https://"))
