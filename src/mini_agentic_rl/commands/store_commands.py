"""`rollouts`, `spans`, `workers` and `import`: look into a store. The tables show the JSON values of `--json`."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias, TypeVar

import typer
from pydantic import Field
from pydantic_core import to_jsonable_python
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..config import COMMAS, JsonSettings, LightningEnvVar, resolve_int_env_var, resolve_str_env_var, restated
from ..errors import UserError
from ..gateway import ServerSettings
from ..metrics import counted
from ..types import Rollout, RolloutMode, RolloutStatus, Span
from ..visible_text import visible, visible_line
from .options import settings_command
from .tables import show

if TYPE_CHECKING:
    from ..store import LightningStore

T = TypeVar("T")

_RETRY_SECONDS = 1.0
_SHOWN = 4000
"""Characters of a message that are shown without `--full`."""

_STORE: Mapping[str, Sequence[str]] = {"Store": ("store", "api_key")}
_OUTPUT: Mapping[str, Sequence[str]] = {"Output": ("json_output",)}

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


class StoreSettings(JsonSettings):
    """Settings of every command that reads a store."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {**_STORE, **_OUTPUT}

    store: str | None = None
    """A run folder, a .db file, postgresql://…, mongodb://… or http://…; by default the store server at AGL_SERVER_HOST
    and AGL_SERVER_PORT, or at 127.0.0.1:4747."""
    api_key: str | None = restated(
        ServerSettings, "api_key", None, "Key of the store server; by default the environment variable AGL_API_KEY."
    )


class RolloutListSettings(StoreSettings):
    """Settings of `rollouts list`."""

    helps: ClassVar[Mapping[str, str]] = {
        "json_output": "Print a JSON list of rollouts, each with its latest attempt.",
    }
    panels: ClassVar[Mapping[str, Sequence[str]]] = {**_STORE, "Which": ("status", "mode", "limit"), **_OUTPUT}

    status: Annotated[list[RolloutStatus], COMMAS] = Field(default=[])
    """Only rollouts with this status; several with commas, as failed,cancelled."""
    mode: RolloutMode | None = None
    """Only rollouts of this mode."""
    limit: int = Field(default=20, ge=-1)
    """At most this many, the newest first; -1 for all."""


class RolloutShowSettings(StoreSettings):
    """Settings of `rollouts show`."""

    helps: ClassVar[Mapping[str, str]] = {
        "json_output": "Print the rollout as JSON, with its attempts, its reward, the number of spans of each attempt, "
        "and its conversations.",
    }
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        **_STORE,
        "Which": ("rollout",),
        "Conversation": ("conversation", "full"),
        **_OUTPUT,
    }

    rollout: str = Field(json_schema_extra={"argument": True})
    """Id of the rollout, or a unique part of it."""
    conversation: bool = True
    """Show the conversations of all attempts."""
    full: bool = False
    """Show long messages in full; otherwise only their beginning."""


class RolloutRetrySettings(StoreSettings):
    """Settings of `rollouts retry`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {**_STORE, "Which": ("rollouts",), **_OUTPUT}

    rollouts: list[str] = Field(default=[], json_schema_extra={"argument": True})
    """Ids of failed rollouts, or unique parts of them; by default every failed rollout that was not retried yet."""


class SpanShowSettings(StoreSettings):
    """Settings of `spans show`."""

    helps: ClassVar[Mapping[str, str]] = {"json_output": "Print the spans as a JSON list, with all their attributes."}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {**_STORE, "Which": ("rollout", "attempt"), **_OUTPUT}

    rollout: str = restated(RolloutShowSettings, "rollout", ...)
    attempt: str = "latest"
    """`latest`, `all`, the number of an attempt, or its id."""


class ImportSettings(StoreSettings):
    """Settings of `import`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {"Source": ("source",), **_STORE, **_OUTPUT}

    source: str = Field(json_schema_extra={"argument": True})
    """`http://…` of a store server, of agent-lightning 0.3 or of this package; or another store."""


rollouts_app = typer.Typer(help="The rollouts of a store: list them, show one, retry failed ones.")
spans_app = typer.Typer(help="The spans of a store, which the attempts of rollouts recorded.")


@settings_command(rollouts_app, "list", RolloutListSettings, log_level="WARNING", has_file=False)
def list_rollouts(settings: RolloutListSettings) -> None:
    """List rollouts, the newest first, with their status, their attempts and why they failed."""
    rollouts, total = _with_store(settings, lambda store: _newest(store, settings))

    def tables(console: Console, rows: Sequence[Row]) -> None:
        table = Table("rollout", "status", "task, and why it failed")
        table.columns[0].no_wrap = table.columns[1].no_wrap = True
        for row in rows:
            attempt = row.get("attempt")
            when = " ".join(filter(None, (row["mode"], _clock(row["start_time"]))))
            tries = attempt and f"try {attempt['sequence_id']} of {row['config']['max_attempts']}"
            table.add_row(
                Text.assemble(visible_line(row["rollout_id"]), "\n", (when, "dim")),
                Text.assemble(_status(row), "\n", (", ".join(filter(None, (tries, _took(row)))), "dim")),
                Text.assemble(_preview(row["input"]), "\n", (_preview(_reason(attempt)), "red")),
            )
        console.print(table)
        if total > len(rows):
            console.print(f"{len(rows)} of {counted(total, 'rollout')}; --limit shows more", style="dim")

    show(settings, as_json(rollouts), tables)


@settings_command(rollouts_app, "show", RolloutShowSettings, log_level="WARNING", has_file=False)
def show_rollout(settings: RolloutShowSettings) -> None:
    """Show one rollout: its task, its attempts, its reward, why it failed, and its conversations."""
    from ..adapter import conversations
    from ..emitter import find_final_reward, find_reward_spans, get_rewards_from_span

    async def read(store: LightningStore) -> tuple[Rollout, list[dict[str, Any]], list[list[Span]]]:
        rollout = await _find(store, settings.rollout)
        attempts, spans_by_attempt = [], []
        for attempt in await store.query_attempts(rollout.rollout_id):
            spans = list(await store.query_spans(rollout.rollout_id, attempt.attempt_id))
            attempts.append({**as_json(attempt), "spans": len(spans)})
            spans_by_attempt.append(spans)
        return rollout, attempts, spans_by_attempt

    rollout, attempts, spans_by_attempt = _with_store(settings, read)
    latest = spans_by_attempt[-1] if spans_by_attempt else []
    reward_spans = find_reward_spans(latest)
    rewards = {reward.name: reward.value for reward in get_rewards_from_span(reward_spans[-1])} if reward_spans else {}
    spans = [span for of_attempt in spans_by_attempt for span in of_attempt] if settings.conversation else []
    result = {
        **as_json(rollout),
        "attempts": attempts,
        "reward": find_final_reward(latest),
        "rewards": rewards,
        "conversations": list(conversations(spans, shown=10**9 if settings.full else _SHOWN)),
    }
    show(settings, result, _show_rollout)


@settings_command(rollouts_app, "retry", RolloutRetrySettings, log_level="WARNING", has_file=False)
def retry_rollouts(settings: RolloutRetrySettings) -> None:
    """Retry failed rollouts.

    Each is queued as a new rollout with the same task, mode, resources and configuration; its metadata names the failed
    one under `retry_of`.
    """

    async def retry(store: LightningStore) -> list[Rollout]:
        from ..store import retry_rollouts

        ids = [(await _find(store, part)).rollout_id for part in settings.rollouts]
        try:
            return await retry_rollouts(store, ids or None)
        except ValueError as error:
            raise UserError(str(error)) from error

    queued = _with_store(settings, retry)
    lines = [f"{rollout.metadata['retry_of']} is tried again as {rollout.rollout_id}" for rollout in queued]
    text = "\n".join(lines) or "no failed rollout is left to try again"
    show(settings, as_json(queued), lambda *_: typer.echo(text))


@settings_command(spans_app, "show", SpanShowSettings, log_level="WARNING", has_file=False)
def show_spans(settings: SpanShowSettings) -> None:
    """Show the spans of a rollout in their order: LLM calls, rewards, messages, errors."""

    async def read(store: LightningStore) -> Sequence[Span]:
        rollout = await _find(store, settings.rollout)
        attempt_id = await _attempt_id(store, rollout.rollout_id, settings.attempt)
        return list(await store.query_spans(rollout.rollout_id, attempt_id))

    show(settings, as_json(_with_store(settings, read)), lambda console, spans: console.print(span_table(spans)))


def show_workers(settings: StoreSettings) -> None:
    """List the workers: what each is doing, and its last heartbeat."""
    workers = _with_store(settings, lambda store: store.query_workers(sort_by="worker_id"))
    show(settings, as_json(list(workers)), lambda console, rows: console.print(worker_table(rows)))


def import_records(settings: ImportSettings) -> None:
    """Import the finished rollouts of another store, with their attempts, spans and resources."""
    from ..store import Imported, import_store, open_store

    if settings.store is None:
        raise UserError("needed: the store to write, a .db file, postgresql:// or mongodb://", setting="store")
    target = settings.store

    async def copy() -> Imported:
        source = open_store(settings.source, api_key=settings.api_key, create=False, retry_seconds=_RETRY_SECONDS)
        store = open_store(target)
        try:
            return await import_store(source, store)
        finally:
            await store.close()
            await source.close()

    imported = asyncio.run(copy())
    lines = [
        f"{counted(imported.rollouts, 'rollout')}, {counted(imported.attempts, 'attempt')}, "
        f"{counted(imported.spans, 'span')} and {imported.resources} resources imported; "
        f"{imported.known} rollouts were there already",
        *([f"{imported.unfinished} unfinished rollouts are left out"] if imported.unfinished else []),
    ]
    show(settings, vars(imported), lambda *_: typer.echo("\n".join(lines)))


def _with_store(settings: StoreSettings, work: Callable[[LightningStore], Awaitable[T]]) -> T:
    """Open the store of the settings, and return the result of `work` on it."""
    from ..store import open_store

    address = settings.store
    if address is None:
        try:
            host = resolve_str_env_var(LightningEnvVar.AGL_SERVER_HOST, fallback="127.0.0.1")
            port = resolve_int_env_var(LightningEnvVar.AGL_SERVER_PORT, fallback=4747)
        except ValueError as error:
            raise UserError(str(error)) from error
        address = f"http://{host}:{port}"
    api_key = resolve_str_env_var(LightningEnvVar.AGL_API_KEY, settings.api_key)

    async def run() -> T:
        store = open_store(address, api_key=api_key, create=False, retry_seconds=_RETRY_SECONDS)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def _newest(store: LightningStore, settings: RolloutListSettings) -> tuple[list[Rollout], int]:
    """Return the newest rollouts that match the filters, and the number of all that match."""
    status = settings.status or None
    if settings.mode is None:
        page = await store.query_rollouts(status_in=status, sort_order="desc", limit=settings.limit)
        return list(page), page.total
    rollouts = await store.query_rollouts(status_in=status, sort_order="desc")
    matching = [rollout for rollout in rollouts if rollout.mode == settings.mode]
    return matching if settings.limit == -1 else matching[: settings.limit], len(matching)


async def _find(store: LightningStore, part: str) -> Rollout:
    """Return the rollout with this id, or the only one whose id contains this part."""
    exact = await store.get_rollout_by_id(part)
    if exact is not None:
        return exact
    matching = await store.query_rollouts(rollout_id_contains=part, limit=1)
    if matching.total == 1:
        return matching[0]
    if not matching.total:
        raise UserError(f"ROLLOUT {part}: the store holds no such rollout; `agl rollouts list` lists them")
    raise UserError(f"ROLLOUT {part}: {matching.total} rollouts have this in their id; give more of it")


async def _attempt_id(store: LightningStore, rollout_id: str, attempt: str) -> str | None:
    if attempt in ("latest", "all"):
        return None if attempt == "all" else attempt
    attempts = await store.query_attempts(rollout_id)
    for candidate in attempts:
        if attempt in (candidate.attempt_id, str(candidate.sequence_id)):
            return candidate.attempt_id
    raise UserError(
        f"--attempt {attempt}: rollout {rollout_id} has {len(attempts)} attempts; "
        "expected latest, all, a number or an id"
    )


def as_json(items: Any) -> Any:
    """Return an item of a store, or several, as JSON values, with null for infinity and NaN."""
    return _finite(to_jsonable_python(items, fallback=str))


def _finite(value: Any) -> Any:
    """Return JSON values with null for infinity and NaN; pydantic leaves those in fields of the type float."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _show_rollout(console: Console, rollout: Row) -> None:
    """Print a rollout: its facts, its `attempts` (oldest first) and its `conversations`."""
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
    console.print(*parts, sep="\n")


def _facts_table(rollout: Row) -> Table:
    """Return a table of the facts of a rollout, one a line."""
    table = Table(title=visible_line(rollout["rollout_id"]), show_header=False)
    config = {name: value for name, value in rollout["config"].items() if value not in (None, [])}
    reward, components = rollout["reward"], rollout["rewards"]
    shown_reward = "" if reward is None else f"{reward:g}"
    if reward is not None and len(components) > 1:
        shown_reward += f" ({', '.join(f'{visible_line(name)} {value:g}' for name, value in components.items())})"
    for name, value in (
        ("status", _status(rollout)),
        ("why", _text(_reason(rollout.get("attempt")))),
        ("reward", shown_reward),
        ("mode", rollout["mode"] or ""),
        ("task", _text(rollout["input"])),
        ("resources", rollout["resources_id"] or ""),
        ("config", _text(config)),
        ("metadata", _text(rollout["metadata"] or "")),
        ("queued", _clock(rollout["start_time"])),
        ("took", _took(rollout)),
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
            visible_line(attempt["attempt_id"]),
            _status(attempt),
            visible_line(attempt["worker_id"] or ""),
            _clock(attempt["start_time"]),
            _took(attempt),
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
            visible_line(span["name"]),
            "" if span["start_time"] is None else f"{span['start_time'] - begin:.2f} s",
            _took(span),
            span["status"]["status_code"],
            "\n".join(f"{name} = {_preview(value)}" for name, value in span["attributes"].items()),
        )
    return table


def worker_table(workers: Sequence[Row]) -> Table:
    """Return a table of one line for each worker."""
    table = Table("worker", "status", "rollout", "last heartbeat", "last claim")
    for worker in workers:
        times = (worker["last_heartbeat_time"], worker["last_dequeue_time"])
        ages = ("" if seconds is None else f"{max(0.0, time.time() - seconds):.0f} s ago" for seconds in times)
        rollout = visible_line(worker["current_rollout_id"] or "")
        table.add_row(visible_line(worker["worker_id"]), _status(worker), rollout, *ages)
    return table


def _reason(attempt: Row | None) -> Any:
    if attempt is None:
        return ""
    if "error" in attempt["metadata"]:
        return attempt["metadata"]["error"]
    status = attempt["status"]
    return f"the attempt's status is {status}" if status in ("timeout", "unresponsive") else ""


def _status(row: Row) -> Text:
    return Text(row["status"], _STATUS_COLOURS.get(row["status"], ""))


def _text(value: Any) -> str:
    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _preview(value: Any) -> str:
    text = " ".join(_text(value).split())
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _took(row: Row) -> str:
    start, end = row["start_time"], row["end_time"]
    return "" if start is None or end is None else f"{end - start:.2f} s"
