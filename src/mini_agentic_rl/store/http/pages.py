"""A page of any length as JSON, read and written in parts: the memory of an answer does not grow with its items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from ..ledger_store import LedgerStore
from .wire_json import encode, is_large

_PART_BYTES: Final = 1024 * 1024
"""Bytes of one part, about."""
_FIRST: Final = 4
"""Items of the first part: one may take as much as the body of a request may."""
_MOST: Final = 1000


async def page_in_parts(store: LedgerStore, call: str, arguments: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """Yield the parts of the answer to a query: the items that pass its filters when it begins, each as it is read.

    Args:
        store: asked for some items at a time.
        call: the method that queries.
        arguments: those of the method.

    Raises:
        ValueError: the store refuses the arguments, or an item is not JSON; the items before it have been yielded.
        LightningStoreError: the store cannot answer.
    """
    kind, page = await store.handles(call, arguments)
    handles = page.items
    body, read, step, comma = bytearray(b'{"items":['), 0, _FIRST, b""
    while read < len(handles):
        items = await store.items(kind, handles[read : read + step])
        read += step
        text = await asyncio.to_thread(encode, items, "") if is_large(items) else encode(items, "")
        step = max(1, min(4 * step, step * _PART_BYTES // len(text), _MOST))
        if items:
            body += comma + text[1:-1]
            comma = b","
        del items, text
        if len(body) > _PART_BYTES:
            yield bytes(body)
            body.clear()
    rest = encode({"limit": page.limit, "offset": page.offset, "total": page.total}, "")
    yield bytes(body) + b"]," + rest[1:]
