"""Spans that may carry a reward, told by a look at them: what a reward is, those know who emit and read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from ..semconv import CompletionSpanAttributes
from ..types import PaginatedResult, Span

NEVER_NAMED: Final = CompletionSpanAttributes.SPAN_NAME
"""Name of the spans that never carry one: LLM calls, the longest of all."""
WORD: Final = "reward"
"""Text in a name or a value among the attributes of every span that carries one."""


def may_carry_reward(span: Span) -> bool:
    """Return False of a span that carries no reward."""
    if span.name == NEVER_NAMED:
        return False
    return any(
        WORD in name or (isinstance(value, str | Mapping) and WORD in str(value))
        for name, value in span.attributes.items()
    )


def that_may_carry_rewards(spans: Iterable[Span]) -> list[Span]:
    """Return the spans that may carry a reward, in the order given."""
    return [span for span in spans if may_carry_reward(span)]


class StoreOfSpans(Protocol):
    """A store as far as its spans go."""

    async def query_spans(self, rollout_id: str, attempt_id: str | None = None) -> PaginatedResult[Span]:
        """Return the spans of an attempt; `latest` names the latest."""
        ...


async def reward_spans_one_by_one(store: StoreOfSpans, rollout_ids: Sequence[str]) -> list[Span]:
    """Return what `LightningStore.get_reward_spans` returns, by a query for each rollout."""
    spans: list[Span] = []
    for rollout_id in dict.fromkeys(rollout_ids):
        spans += that_may_carry_rewards(await store.query_spans(rollout_id, "latest"))
    return spans
