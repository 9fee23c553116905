"""Lists that may be written as one text with commas, on the command line, in a file or in Python."""

from __future__ import annotations

from typing import Any

from pydantic import BeforeValidator


def _parted(value: Any) -> Any:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return value
    return [part for item in items for part in (_parts(item) if isinstance(item, str) else [item])]


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


COMMAS = BeforeValidator(_parted)
"""Marks a list whose items may be given one by one, or several in one text: `Annotated[list[int], COMMAS]`."""
