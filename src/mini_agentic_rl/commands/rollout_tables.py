"""Rollouts, attempts, spans, workers and conversations as Rich tables."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..metrics import counted
from ..types import Attempt, AttemptedRollout, Rollout, Span, Worker
from ..visible_text import visible, visible_line

_ROLES: Final[Mapping[str, str]] = {
    "system": "magenta",
    "developer": "magenta",
    "user": "blue",
    "assistant": "green",
    "tool": "yellow",
}
_MARGIN: Final = (0, 0, 0, 2)


def conversation_texts(told: Sequence[Mapping[str, Any]], attempts: Sequence[str]) -> list[RenderableType]:
    """Return what prints conversations as `dashboard.conversations` tells them.

    Args:
        attempts: ids of the rollout's attempts in order; which one a conversation is of is told where there are
            several.
    """
    parts: list[RenderableType] = []
    for one in told:
        parts.append(_head(one, attempts))
        parts += [_message(message) for message in one["messages"]]
    return parts


def _head(told: Mapping[str, Any], attempts: Sequence[str]) -> Rule:
    parts = ["Conversation"]
    if len(attempts) > 1 and told["attempt"] in attempts:
        parts.append(f"attempt {attempts.index(told['attempt']) + 1}")
    parts.append(counted(told["calls"], "LLM call"))
    if told["tools"]:
        parts.append(f"tools: {', '.join(map(visible_line, told['tools']))}")
    return Rule(Text(", ".join(parts), "bold"), align="left", style="dim")


def _message(message: Mapping[str, Any]) -> Group:
    role = message["role"]
    colour = _ROLES.get(role, "cyan")
    head = Text(visible_line(role) or "?", f"bold {colour}")
    if message["answers"]:
        head.append(f"  answers {visible_line(message['answers'])}", "dim")
    parts: list[RenderableType] = [head]
    if message["content"]["text"]:
        parts.append(Padding(_cut_text(message["content"], ""), _MARGIN))
    for call in message["calls"]:
        name = Text.assemble(("→ ", "bold cyan"), (visible_line(call["name"]["text"]), "bold cyan"), " ")
        parts.append(Padding(name.append_text(_cut_text(call["arguments"], "cyan")), _MARGIN))
    return Group(*parts)


def _cut_text(text: Mapping[str, Any], style: str) -> Text:
    shown = Text(visible(text["text"]), style)
    if text["more"]:
        shown.append(f" … ({counted(text['more'], 'more character')}; --full shows them)", "dim")
    return shown


@dataclass(frozen=True)
class ToldRollout:
    """A rollout, and what its spans say of it."""

    rollout: Rollout
    attempts: Sequence[Mapping[str, Any]]
    reward: float | None
    """Final reward of the latest attempt."""
    components: Mapping[str, float]
    """That reward by its names."""
    conversations: Sequence[Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        facts = {"attempts": list(self.attempts), "reward": self.reward, "rewards": dict(self.components)}
        return {**as_json(self.rollout), **facts, "conversations": list(self.conversations)}

    def print(self, console: Console) -> None:
        """Print it for a person."""
        console.print(rollout_facts(self.rollout, self.reward, self.components), attempt_table(self.attempts))
        ids = [str(attempt["attempt_id"]) for attempt in self.attempts]
        for part in conversation_texts(self.conversations, ids):
            console.print(part)


def told_rollout(
    rollout: Rollout, attempts: Sequence[Mapping[str, Any]], spans: Sequence[Span], *, shown: int | None
) -> ToldRollout:
    """Return what is told of a rollout.

    Args:
        attempts: as JSON values, with the number of their spans, oldest first.
        spans: of all attempts.
        shown: characters of one message that are told; None leaves the conversations out.
    """
    from ..adapter import conversations
    from ..emitter import find_final_reward, find_reward_spans, get_rewards_from_span

    latest = [span for span in spans if attempts and span.attempt_id == attempts[-1]["attempt_id"]]
    given = find_reward_spans(latest)
    components = {one.name: one.value for one in get_rewards_from_span(given[-1])} if given else {}
    said = [] if shown is None else conversations(spans, shown=shown)
    return ToldRollout(rollout, attempts, find_final_reward(latest), components, said)


_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "timeout": "red",
    "unresponsive": "red",
    "cancelled": "dim",
    "running": "cyan",
    "preparing": "cyan",
    "busy": "cyan",
    "queuing": "yellow",
    "requeuing": "yellow",
}
_PREVIEW = 60


def as_json(item: BaseModel) -> Any:
    """The item as JSON values. JSON knows no infinity and no NaN: null stands for them."""
    return _finite(item.model_dump(mode="json", fallback=str))


def rollout_table(rollouts: Sequence[Rollout]) -> Table:
    """Two lines for each rollout: which and when, how it stands, its task and why it failed."""
    table = Table("rollout", "status", "task, and why it failed")
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for rollout in rollouts:
        attempt = _latest(rollout)
        when = " ".join(filter(None, (rollout.mode, _clock(rollout.start_time))))
        tries = "" if attempt is None else f"try {attempt.sequence_id} of {rollout.config.max_attempts}"
        took = _took(rollout.start_time, rollout.end_time)
        table.add_row(
            Text.assemble(visible_line(rollout.rollout_id), "\n", (when, "dim")),
            Text.assemble(_status(rollout.status), "\n", (", ".join(filter(None, (tries, took))), "dim")),
            Text.assemble(_preview(rollout.input), "\n", (_shortened(_reason(attempt)), "red")),
        )
    return table


def rollout_facts(rollout: Rollout, reward: float | None, components: Mapping[str, float] | None = None) -> Table:
    """All of one rollout, a line for each fact; the components of its reward where it has several."""
    parts = ", ".join(f"{visible_line(name)} {value:g}" for name, value in (components or {}).items())
    table = Table(title=visible_line(rollout.rollout_id), show_header=False)
    config = {name: value for name, value in as_json(rollout.config).items() if value not in (None, [])}
    for name, value in (
        ("status", _status(rollout.status)),
        ("why", _text(_reason(_latest(rollout)))),
        ("reward", "" if reward is None else f"{reward:g}" + (f" ({parts})" if len(components or {}) > 1 else "")),
        ("mode", rollout.mode or ""),
        ("task", _text(rollout.input)),
        ("resources", rollout.resources_id or ""),
        ("config", _text(config)),
        ("metadata", _text(rollout.metadata or "")),
        ("queued", _clock(rollout.start_time)),
        ("took", _took(rollout.start_time, rollout.end_time)),
    ):
        if str(value):
            table.add_row(name, value)
    return table


def attempt_table(attempts: Sequence[Mapping[str, Any]]) -> Table:
    """One line for each attempt, given as JSON values with the number of its spans."""
    table = Table("#", "attempt", "status", "worker", "started", "took", "spans", "why", title="Attempts")
    table.columns[1].overflow = "fold"
    for attempt in attempts:
        table.add_row(
            str(attempt["sequence_id"]),
            Text(visible_line(attempt["attempt_id"])),
            _status(attempt["status"]),
            Text(visible_line(attempt["worker_id"] or "")),
            _clock(attempt["start_time"]),
            _took(attempt["start_time"], attempt["end_time"]),
            str(attempt["spans"]),
            _preview(attempt["metadata"].get("error", "")),
        )
    return table


def span_table(spans: Sequence[Span]) -> Table:
    """One line for each span; times are seconds since the first one began."""
    table = Table("#", "span", "at", "took", "status", "attributes")
    begin = min((span.start_time for span in spans if span.start_time is not None), default=0.0)
    for span in spans:
        table.add_row(
            str(span.sequence_id),
            Text(visible_line(span.name)),
            "" if span.start_time is None else f"{span.start_time - begin:.2f} s",
            _took(span.start_time, span.end_time),
            span.status.status_code,
            Text("\n".join(f"{name} = {_shortened(value)}" for name, value in span.attributes.items())),
        )
    return table


def worker_table(workers: Sequence[Worker]) -> Table:
    """One line for each worker."""
    table = Table("worker", "status", "rollout", "last heartbeat", "last claim")
    now = time.time()
    for worker in workers:
        table.add_row(
            Text(visible_line(worker.worker_id)),
            _status(worker.status),
            Text(visible_line(worker.current_rollout_id or "")),
            _ago(worker.last_heartbeat_time, now),
            _ago(worker.last_dequeue_time, now),
        )
    return table


def _latest(rollout: Rollout) -> Attempt | None:
    return rollout.attempt if isinstance(rollout, AttemptedRollout) else None


def _reason(attempt: Attempt | None) -> Any:
    if attempt is None:
        return ""
    if "error" in attempt.metadata:
        return attempt.metadata["error"]
    return f"the attempt's status is {attempt.status}" if attempt.status in ("timeout", "unresponsive") else ""


def _status(status: str) -> Text:
    return Text(status, _STYLES.get(status, ""))


def _text(value: Any) -> Text:
    text = value if isinstance(value, str) else json.dumps(_finite(value), ensure_ascii=False, default=str)
    return Text(visible(text))


def _preview(value: Any) -> Text:
    return Text(_shortened(value if isinstance(value, str) else _text(value).plain))


def _shortened(value: Any) -> str:
    text = visible(" ".join(str(value).split()))
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _took(start: float | None, end: float | None) -> str:
    return "" if start is None or end is None else f"{end - start:.2f} s"


def _ago(seconds: float | None, now: float) -> str:
    return "" if seconds is None else f"{max(0.0, now - seconds):.0f} s ago"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
