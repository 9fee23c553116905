"""Results as a person reads them (Rich tables): accuracies, memory plans, and the contents of a store, also as JSON."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..config import JsonSettings
from ..metrics import counted, number, percent
from ..types import Attempt, AttemptedRollout, Rollout, Span, Worker
from ..visible_text import VisibleConsole, visible, visible_json, visible_line

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


def show(settings: JsonSettings, result: Any, tables: Callable[[Console], None], *, ascii_only: bool = False) -> None:
    """Print a result: as JSON where the settings ask for it, else by `tables`, which is given the console."""
    if settings.json_output:
        typer.echo(visible_json(json.dumps(result, indent=2, ensure_ascii=ascii_only)))
    else:
        tables(VisibleConsole())


def accuracy_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of `trainer.statistics.AccuracyRow`s."""
    table = Table("", "accuracy", "95 % interval", "correct", title="Accuracy")
    for row in rows:
        table.add_row(
            Text(visible_line(str(row["name"]))),
            percent(row["accuracy"]),
            f"{100 * row['low']:.1f} – {percent(row['high'])}",
            f"{row['correct']:g} of {row['count']}",
        )
    return table


def check_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of `trainer.evaluations.check_rows`."""
    table = Table("", "check", "mean", "95 % interval", title="Other checks of the same answers")
    for row in rows:
        name, check = (Text(visible_line(str(row[key]))) for key in ("name", "check"))
        table.add_row(name, check, number(row["mean"]), f"{number(row['low'])} – {number(row['high'])}")
    return table


def show_result(
    console: Console, summary: Mapping[str, Any], *, written: Sequence[Path] = (), then: Sequence[str] = ()
) -> None:
    """Print the accuracies of a summary, the other checks of its answers, why rollouts were left out, those of the
    `written` paths that exist, and what to do `then`."""
    rows = summary.get("accuracy") or []
    if rows:
        console.print(accuracy_table(rows))
    if summary.get("checks"):
        console.print(check_table(summary["checks"]))
    for key, consequence in (("untrained", "not trained"), ("failed", "counted as wrong")):
        for reason, count in (summary.get(key) or {}).items():
            console.print(
                f"{counted(count, 'rollout')} {consequence}: {reason}", style="yellow", markup=False, soft_wrap=True
            )
    for path in written:
        if path.exists():
            console.print(f"wrote {path}", highlight=False, soft_wrap=True, markup=False)
    for line in then:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def show_plan(console: Console, plan: Mapping[str, Any]) -> None:
    """Print a memory plan, the seconds of a step, and the options of `train` that go with them."""
    table = Table(
        "", "when", "MB", title="Memory" if plan["ranks"] == 1 else f"Memory of each of {plan['ranks']} ranks"
    )
    table.columns[2].justify = "right"
    for part in plan["parts"]:
        table.add_row(Text(visible_line(part["name"])), part["phase"], _megabytes(part["bytes"]))
    table.add_section()
    table.add_row("peak", "", _megabytes(plan["peak_bytes"]))
    console.print(table)
    if plan["replica"] is not None:
        servers = Table("", "MB", title="Memory of each server that samples (estimated, not measured)")
        servers.columns[1].justify = "right"
        for part in plan["replica"]["parts"]:
            servers.add_row(part["name"], _megabytes(part["bytes"]))
        servers.add_section()
        servers.add_row("all", _megabytes(plan["replica"]["peak_bytes"]))
        console.print(servers)
    for line in _step_lines(plan["step"]):
        console.print(Text(visible_line(line)), soft_wrap=True)
    console.print(f"mini-agentic-rl train {plan['options']}", highlight=False, soft_wrap=True, markup=False)


def show_parity(console: Console, found: Mapping[str, Any]) -> None:
    """Print how far the log-probabilities of each server are from the learner's."""
    table = Table("server", "weights", "tokens", "mean |difference|", "largest", title="Log-probabilities (nats)")
    for url, comparisons in found["servers"].items():
        for weights, each in comparisons.items():
            numbers = (f"{each['tokens']}", f"{each['difference']:.2g}", f"{each['largest']:.2g}")
            table.add_row(Text(visible_line(url)), weights, *numbers)
    console.print(table)
    console.print(f"all within {found['bound']:g}: they sample what is learnt", highlight=False)


def _step_lines(step: Mapping[str, Any] | None) -> list[str]:
    if step is None:
        return ["step: no rates were measured on a card; --rates RUN takes those of a run"]
    return [
        f"step: {step['seconds']:,.1f} s ({step['sampling_seconds']:,.1f} s of sampling, "
        f"{step['learning_seconds']:,.1f} s of learning), without the waiting of agents, publishing and summing",
        f"rates: {step['rates']}; by the number of weights, {step['sampled_tokens_per_second']:,.0f} tokens/s sampled "
        f"and {step['learned_tokens_per_second']:,.0f} learned by each process",
    ]


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f}"


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
