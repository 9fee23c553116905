"""Rollouts, attempts, spans, workers and conversations, as `--json` prints them, in Rich tables."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from pydantic import BaseModel
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..metrics import counted
from ..visible_text import visible, visible_line

Row: TypeAlias = Mapping[str, Any]
"""A rollout, an attempt, a span or a worker as JSON values."""

_ROLE_COLOURS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("system", "developer"), "magenta"),
    "user": "blue",
    "assistant": "green",
    "tool": "yellow",
}
_STATUS_COLOURS: Final[Mapping[str, str]] = {
    "succeeded": "green",
    "cancelled": "dim",
    **dict.fromkeys(("failed", "timeout", "unresponsive"), "red"),
    **dict.fromkeys(("running", "preparing", "busy"), "cyan"),
    **dict.fromkeys(("queuing", "requeuing"), "yellow"),
}
_MARGIN: Final = (0, 0, 0, 2)
_PREVIEW: Final = 60
"""Characters of a preview."""


def as_json(item: BaseModel) -> Any:
    """Return an item as JSON values, with null for infinity and NaN."""
    return _finite(item.model_dump(mode="json", fallback=str))


def rollout_table(rollouts: Sequence[Row]) -> Table:
    """Return a table of two lines for each rollout: id and time, status and attempt, task and reason of a failure."""
    table = Table("rollout", "status", "task, and why it failed")
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for rollout in rollouts:
        attempt = rollout.get("attempt")
        when = " ".join(filter(None, (rollout["mode"], _clock(rollout["start_time"]))))
        tries = attempt and f"try {attempt['sequence_id']} of {rollout['config']['max_attempts']}"
        took = _took(rollout["start_time"], rollout["end_time"])
        table.add_row(
            Text.assemble(visible_line(rollout["rollout_id"]), "\n", (when, "dim")),
            Text.assemble(_status(rollout["status"]), "\n", (", ".join(filter(None, (tries, took))), "dim")),
            Text.assemble(_preview(rollout["input"]), "\n", (_shortened(_reason(attempt)), "red")),
        )
    return table


def rollout_parts(rollout: Row) -> list[RenderableType]:
    """Return what shows a rollout: its facts, its `attempts` (oldest first) and its `conversations`."""
    parts: list[RenderableType] = [_facts_table(rollout), _attempt_table(rollout["attempts"])]
    ids = [str(attempt["attempt_id"]) for attempt in rollout["attempts"]]
    for conversation in rollout["conversations"]:
        head = ["Conversation"]
        if len(ids) > 1 and conversation["attempt"] in ids:
            head.append(f"attempt {ids.index(conversation['attempt']) + 1}")
        head.append(counted(conversation["calls"], "LLM call"))
        if conversation["tools"]:
            head.append(f"tools: {', '.join(map(visible_line, conversation['tools']))}")
        parts.append(Rule(Text(", ".join(head), "bold"), align="left", style="dim"))
        parts += map(_message, conversation["messages"])
    return parts


def _facts_table(rollout: Row) -> Table:
    """Return a table of the facts of a rollout, one a line."""
    table = Table(title=visible_line(rollout["rollout_id"]), show_header=False)
    config = {name: value for name, value in rollout["config"].items() if value not in (None, [])}
    reward, components = rollout["reward"], rollout["rewards"]
    shown_reward = "" if reward is None else f"{reward:g}"
    if reward is not None and len(components) > 1:
        shown_reward += f" ({', '.join(f'{visible_line(name)} {value:g}' for name, value in components.items())})"
    for name, value in (
        ("status", _status(rollout["status"])),
        ("why", _text(_reason(rollout.get("attempt")))),
        ("reward", shown_reward),
        ("mode", rollout["mode"] or ""),
        ("task", _text(rollout["input"])),
        ("resources", rollout["resources_id"] or ""),
        ("config", _text(config)),
        ("metadata", _text(rollout["metadata"] or "")),
        ("queued", _clock(rollout["start_time"])),
        ("took", _took(rollout["start_time"], rollout["end_time"])),
    ):
        if str(value):
            table.add_row(name, value)
    return table


def _attempt_table(attempts: Sequence[Row]) -> Table:
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


def _message(message: Row) -> Group:
    role = message["role"]
    head = Text(visible_line(role) or "?", f"bold {_ROLE_COLOURS.get(role, 'cyan')}")
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


def span_table(spans: Sequence[Row]) -> Table:
    """Return a table of one line for each span; times are seconds since the first span began."""
    table = Table("#", "span", "at", "took", "status", "attributes")
    begin = min((span["start_time"] for span in spans if span["start_time"] is not None), default=0.0)
    for span in spans:
        table.add_row(
            str(span["sequence_id"]),
            Text(visible_line(span["name"])),
            "" if span["start_time"] is None else f"{span['start_time'] - begin:.2f} s",
            _took(span["start_time"], span["end_time"]),
            span["status"]["status_code"],
            Text("\n".join(f"{name} = {_shortened(value)}" for name, value in span["attributes"].items())),
        )
    return table


def worker_table(workers: Sequence[Row]) -> Table:
    """Return a table of one line for each worker."""
    table = Table("worker", "status", "rollout", "last heartbeat", "last claim")
    now = time.time()
    for worker in workers:
        times = (worker["last_heartbeat_time"], worker["last_dequeue_time"])
        table.add_row(
            Text(visible_line(worker["worker_id"])),
            _status(worker["status"]),
            Text(visible_line(worker["current_rollout_id"] or "")),
            *("" if seconds is None else f"{max(0.0, now - seconds):.0f} s ago" for seconds in times),
        )
    return table


def _reason(attempt: Row | None) -> Any:
    if attempt is None:
        return ""
    if "error" in attempt["metadata"]:
        return attempt["metadata"]["error"]
    status = attempt["status"]
    return f"the attempt's status is {status}" if status in ("timeout", "unresponsive") else ""


def _status(status: str) -> Text:
    return Text(status, _STATUS_COLOURS.get(status, ""))


def _text(value: Any) -> Text:
    return Text(visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))


def _preview(value: Any) -> Text:
    return Text(_shortened(value if isinstance(value, str) else _text(value).plain))


def _shortened(value: Any) -> str:
    text = visible(" ".join(str(value).split()))
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _took(start: float | None, end: float | None) -> str:
    return "" if start is None or end is None else f"{end - start:.2f} s"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
