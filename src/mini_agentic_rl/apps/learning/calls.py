"""Calls of a session, a few at a time: each holds all that was said before it, so that together they have no bound."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from ...semconv import AGL_ANNOTATION
from ...semconv import CompletionSpanAttributes as Call
from ...store import LightningStore
from ...types import Span
from .record import SessionRecord
from .rewards import Answer

_PAGE: Final = 8


async def count_calls(store: LightningStore, record: SessionRecord) -> int:
    """Return how many calls a session has made."""
    return (await store.query_spans(record.rollout_id, record.attempt_id, name=Call.SPAN_NAME, limit=0)).total


async def calls_from(store: LightningStore, record: SessionRecord, offset: int = 0) -> AsyncIterator[Span]:
    """Yield the spans of a session's calls, in order, from a place on."""
    while True:
        page = await store.query_spans(
            record.rollout_id, record.attempt_id, name=Call.SPAN_NAME, limit=_PAGE, offset=offset
        )
        for span in page:
            yield span
        if len(page) < _PAGE:
            return
        offset += len(page)


async def last_call(store: LightningStore, record: SessionRecord) -> Span | None:
    """Return the span of a session's last call; None where it has made none."""
    page = await store.query_spans(
        record.rollout_id, record.attempt_id, name=Call.SPAN_NAME, sort_order="desc", limit=1
    )
    return page[0] if page else None


async def judgements_of(store: LightningStore, record: SessionRecord) -> list[Span]:
    """Return the spans of a session among which its rewards are."""
    return list(await store.query_spans(record.rollout_id, record.attempt_id, name=AGL_ANNOTATION))


def answer_of(call: Span) -> Answer:
    """Return which answer a call was given."""
    choice = call.attributes.get(Call.CHOICE_INDEX, 0)
    response_id = str(call.attributes.get(Call.RESPONSE_ID, ""))
    return Answer(response_id, int(choice) if isinstance(choice, int) else 0).of_the_call
