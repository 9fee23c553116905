"""The doctor's findings about a run, from its metrics and its newest rollouts; and transcripts for its report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...adapter import TraceToMessages, count_tool_calls, is_completion
from ...errors import UserError
from ...metrics import RULES, Finding, RolloutFacts, RunView, StepNumbers, diagnose, read_metrics
from ...semconv import CompletionSpanAttributes as Key
from ...store import LightningStore
from .rollouts import RolloutRow, group_rows, latest_spans, rollout_rows, spans_of
from .sources import ShownRun

_ROLLOUTS: Final = 48
_GROUPS: Final = 200
_PAGES: Final = 40
_ENDED: Final = ("succeeded", "failed")


@dataclass(frozen=True)
class Examined:
    """The doctor's findings about a run."""

    name: str
    view: RunView
    findings: Sequence[Finding]
    unread: str | None = None
    """Reason why its rollouts could not be read, so that only metrics were checked; None if they were read."""

    @property
    def healthy(self) -> tuple[str, ...]:
        """Names of the rules without findings."""
        broken = {finding.rule for finding in self.findings}
        return tuple(rule.__name__ for rule in RULES if rule.__name__ not in broken)

    def as_json(self) -> Mapping[str, Any]:
        """Return it as JSON values."""
        return {
            "run": self.name,
            "steps": len(self.view.steps),
            "measurements": len(self.view.measured),
            "rollouts": len(self.view.rollouts),
            "unread": self.unread,
            "findings": [finding.as_json() for finding in self.findings],
            "healthy": list(self.healthy),
        }


async def examine(source: ShownRun) -> Examined:
    """Return the doctor's findings about a run, or about a store without a folder.

    If the store cannot be read, only the metrics are checked.

    Raises:
        UserError: the store cannot be read, and there are no metrics.
    """
    rows: list[dict[str, Any]] = []
    eval_size = None
    if source.folder is not None:
        rows = await asyncio.to_thread(read_metrics, source.folder.metrics_path)
        config = await asyncio.to_thread(source.facts)
        size = (config.get("config") or {}).get("eval_size")
        eval_size = size if isinstance(size, int) else None
    rollouts, unread = [], None
    try:
        store = await source.store()
        newest = await _newest(store, _ROLLOUTS, {"status_in": _ENDED, "mode": "train"})
        rollouts = [await _facts(store, row) for row in newest]
    except UserError as error:
        if not rows:
            raise
        unread = str(error)
    view = RunView.of_rows(rows, rollouts=rollouts, eval_size=eval_size)
    if source.folder is None:
        groups, _ = await group_rows(store, _GROUPS)
        view = RunView(_steps_of(groups), (), rollouts)
    return Examined(source.name, view, diagnose(view), unread)


async def _newest(store: LightningStore, count: int, conditions: Mapping[str, Any]) -> list[RolloutRow]:
    """Return the newest rollouts that meet the conditions; fewer if the search for them takes long."""
    rows: list[RolloutRow] = []
    before: int | None = None
    for _ in range(_PAGES):
        page, before = await rollout_rows(store, conditions, count - len(rows), before)
        rows += page
        if before is None or len(rows) == count:
            break
    return rows


async def _facts(store: LightningStore, row: RolloutRow) -> RolloutFacts:
    latest = latest_spans(await spans_of(store, row["id"]))
    completions = [span for span in latest if is_completion(span)]
    calls = count_tool_calls(latest)
    return RolloutFacts(
        rollout_id=row["id"],
        succeeded=row["status"] == "succeeded",
        reward=row["reward"],
        why=row["why"],
        offered_tools=calls is not None,
        tool_calls=calls or 0,
        cut=bool(completions) and "length" in (completions[-1].attributes.get(Key.FINISH_REASONS) or ()),
    )


def _steps_of(groups: Sequence[Mapping[str, Any]]) -> list[StepNumbers]:
    """Return numbers of each step from the groups of a store, in place of metrics."""
    by_step: dict[int, list[list[float]]] = {}
    for group in groups:
        rewards = [reward for reward in group["rewards"] if reward is not None]
        if group["step"] is not None and rewards:
            by_step.setdefault(group["step"], []).append(rewards)
    steps = []
    for step, each in sorted(by_step.items()):
        all_of_step = np.array([reward for rewards in each for reward in rewards], np.float64)
        numbers = {
            "groups/count": float(len(each)),
            # One rollout alone is not compared with others: PPO learns from it.
            "groups/with_signal": float(sum(len(rewards) == 1 or max(rewards) > min(rewards) for rewards in each)),
            "reward/mean": float(all_of_step.mean()),
            "reward/std": float(all_of_step.std()),
        }
        steps.append(StepNumbers(step, numbers))
    return steps


# Conversations of a run's latest evaluation, for its report.


_LOOKED_AT: Final = 200
_TRANSCRIPT_PAGES: Final = 10


async def transcripts_of(source: ShownRun, count: int = 6) -> list[dict[str, Any]]:
    """Return conversations of the latest evaluation, up to half of them wrong: `title`, `messages`, `reward`, `note`.

    Raises:
        UserError: the store cannot be read.
    """
    store = await source.store()
    measured: list[RolloutRow] = []
    before: int | None = None
    for _ in range(_TRANSCRIPT_PAGES):
        page, before = await rollout_rows(store, {"status_in": ["succeeded"]}, _LOOKED_AT, before)
        measured += [row for row in page if row["evaluation"] is not None]
        if before is None or len(measured) >= _LOOKED_AT:
            break
    rows = [row for row in measured if row["evaluation"] == measured[0]["evaluation"]]
    wrong = [row for row in rows if not row["reward"]]
    right = [row for row in rows if row["reward"]]
    half = count // 2
    chosen = right[: count - min(half, len(wrong))] + wrong[:half]
    transcripts = [await _transcript(store, row) for row in chosen]
    return [transcript for transcript in transcripts if transcript is not None]


async def _transcript(store: LightningStore, row: RolloutRow) -> dict[str, Any] | None:
    conversations = TraceToMessages().adapt(latest_spans(await spans_of(store, row["id"])))
    if not conversations:
        return None
    rollout = await store.get_rollout_by_id(row["id"])
    task = None if rollout is None else rollout.input
    gold = task.get("answer") if isinstance(task, dict) else None
    return {
        "title": f"{row['evaluation']}: {row['id']}",
        "messages": conversations[-1]["messages"],
        "reward": row["reward"],
        "note": None if gold is None else f"expected answer: {gold}",
    }
