"""Notice of what other processes have written to a MongoDB store, from a change stream or by polling.

A transaction that changes something others may wait for leaves `writer/turn` in the field `news` of the lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from typing import Any, Final

from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from .schema import THE_LOCK

logger = logging.getLogger(__name__)

_AWAIT_MILLISECONDS: Final = 100
_POLL_SECONDS: Final = 0.1
_NEWS: Final = [
    {
        "$match": {
            "operationType": "update",
            "documentKey._id": THE_LOCK["_id"],
            "updateDescription.updatedFields.news": {"$exists": True},
        }
    }
]


def news_mark(writer: str, turn: int) -> str:
    """Return what a transaction leaves in the field `news`."""
    return f"{writer}/{turn}"


def foreign_news(state: Collection[Any], writer: str) -> Generator[bool, None, None]:
    """Yield True first and whenever anyone but `writer` may have left news, else False about every tenth of a second.

    Where the server or the user's rights give no change stream, the field is looked at that often, and the news of
    `writer` count as well.

    Raises:
        PyMongoError: the server cannot be reached.
    """
    try:
        yield from _streamed(state, writer)
    except OperationFailure as error:
        logger.info("no change stream (%s): looking for news every %g s", error, _POLL_SECONDS)
        yield from _polled(state)


def _streamed(state: Collection[Any], writer: str) -> Generator[bool, None, None]:
    seen = 0
    with state.watch(_NEWS, max_await_time_ms=_AWAIT_MILLISECONDS) as stream:
        yield True
        while stream.alive:
            change = stream.try_next()
            foreign = False
            if change is not None:
                author, _, turn = change["updateDescription"]["updatedFields"]["news"].rpartition("/")
                foreign = author != writer and int(turn) > seen
            if foreign:  # whoever looks now sees all turns up to this one: their news are none any more
                seen = _field(state, "turn") or 0
            yield foreign


def _polled(state: Collection[Any]) -> Generator[bool, None, None]:
    last = _field(state, "news")
    yield True
    while True:
        time.sleep(_POLL_SECONDS)
        news = _field(state, "news")
        yield news != last
        last = news


def _field(state: Collection[Any], name: str) -> Any:
    lock = state.find_one(THE_LOCK, {name: 1})
    return None if lock is None else lock[name]
