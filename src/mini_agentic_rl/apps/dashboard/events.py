"""Server-sent events: which runs have written something. The page then asks for what it shows."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from .sources import ShownRun

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_SIGN_SECONDS: Final = 15.0
"""Seconds after which a connection without news is kept alive by a comment."""


async def events_of(sources: Sequence[ShownRun], ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield an event `changed` with the names of runs as often as these have written something, until `ended`."""
    known = {source.name: await _mark(source) for source in sources}
    yield b"event: ready\ndata: []\n\n"
    quiet_since = time.monotonic()
    while not ended():
        await asyncio.sleep(_LOOK_SECONDS)
        changed = []
        for source in sources:
            mark = await _mark(source)
            if mark != known[source.name]:
                known[source.name] = mark
                changed.append(source.name)
        if changed:
            yield b"event: changed\ndata: " + json.dumps(changed).encode() + b"\n\n"
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > _SIGN_SECONDS:
            yield b": nothing new\n\n"
            quiet_since = time.monotonic()


async def _mark(source: ShownRun) -> str:
    try:
        return f"{await source.browser.mark()} {await asyncio.to_thread(_files, source)}"
    except Exception as error:  # a store that cannot be reached now may be reached again
        logger.debug("the dashboard hears nothing of %s: %s", source.name, error)
        return ""


def _files(source: ShownRun) -> str:
    if source.folder is None:
        return ""
    found = []
    for path in (source.folder.metrics_path, source.folder.summary_path):
        try:
            stat = path.stat()
        except OSError:
            continue
        found.append(f"{stat.st_mtime_ns}.{stat.st_size}")
    return " ".join(found)
