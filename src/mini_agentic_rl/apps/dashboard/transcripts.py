"""Some conversations of a run's latest measurement, read from its store, as a report shows them."""

from __future__ import annotations

from typing import Any, Final

from ...adapter import TraceToMessages
from .browse import RolloutFilter, RolloutRow
from .sources import ShownRun

_LOOKED_AT: Final = 200
_PAGES: Final = 10


async def transcripts_of(source: ShownRun, count: int = 6) -> list[dict[str, Any]]:
    """Return conversations of the latest measurement, half of them wrong where there are so many: `title`, `messages`,
    `reward` and `note`.

    Raises:
        UserError: the store cannot be read.
    """
    rows = await _latest_measurement(source)
    wrong = [row for row in rows if not row["reward"]]
    right = [row for row in rows if row["reward"]]
    half = count // 2
    chosen = right[: count - min(half, len(wrong))] + wrong[:half]
    return [told for row in chosen if (told := await _told(source, row)) is not None]


async def _latest_measurement(source: ShownRun) -> list[RolloutRow]:
    found: list[RolloutRow] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await source.browser.page(RolloutFilter(status=("succeeded",)), cursor, _LOOKED_AT)
        found += [row for row in page.items if row["evaluation"] is not None]
        cursor = page.next
        if cursor is None or len(found) >= _LOOKED_AT:
            break
    return [row for row in found if row["evaluation"] == found[0]["evaluation"]]


async def _told(source: ShownRun, row: RolloutRow) -> dict[str, Any] | None:
    spans = await source.browser.spans(row["id"])
    latest = [span for span in spans if span.attempt_id == spans[-1].attempt_id]
    conversations = TraceToMessages().adapt(latest)
    if not conversations:
        return None
    rollout = await source.browser.rollout(row["id"])
    task = None if rollout is None else rollout.input
    gold = task.get("answer") if isinstance(task, dict) else None
    return {
        "title": f"{row['evaluation']}: {row['id']}",
        "messages": conversations[-1]["messages"],
        "reward": row["reward"],
        "note": None if gold is None else f"expected answer: {gold}",
    }
