"""`rollouts`, `spans`, `workers`, `import` and `store`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import typer
from pydantic import Field
from rich.console import Console

from ..config import COMMAS, JsonSettings, LightningEnvVar, resolve_int_env_var, resolve_str_env_var, restated
from ..errors import UserError
from ..gateway import ServerSettings
from ..metrics import counted
from ..types import Rollout, RolloutMode, RolloutStatus, Span
from .options import settings_command
from .rollout_tables import as_json, rollout_table, span_table, told_rollout, worker_table
from .tables import show

if TYPE_CHECKING:
    from ..store import LightningStore

T = TypeVar("T")

_RETRY_SECONDS = 1.0
_SHOWN = 4000
"""Characters of one message that are shown, where not all are asked for."""

_STORE: Mapping[str, Sequence[str]] = {"Store": ("store", "api_key")}
_OUTPUT: Mapping[str, Sequence[str]] = {"Output": ("json_output",)}


class StoreSettings(JsonSettings):
    """Settings of every command that looks into a store."""

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
    """Only rollouts in this status; several with commas, as failed,cancelled."""
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
    """Id of the rollout, or a part of it that no other has."""
    conversation: bool = True
    """Show what was said, in all attempts."""
    full: bool = False
    """Show long messages whole, of which otherwise the beginning is shown."""


class RolloutRetrySettings(StoreSettings):
    """Settings of `rollouts retry`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {**_STORE, "Which": ("rollouts",), **_OUTPUT}

    rollouts: list[str] = Field(default=[], json_schema_extra={"argument": True})
    """Ids of failed rollouts, or parts of them; without any: every failed rollout not yet retried."""


class SpanShowSettings(StoreSettings):
    """Settings of `spans show`."""

    helps: ClassVar[Mapping[str, str]] = {"json_output": "Print the spans as a JSON list, with all their attributes."}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {**_STORE, "Which": ("rollout", "attempt"), **_OUTPUT}

    rollout: str = restated(RolloutShowSettings, "rollout", ...)
    attempt: str = "latest"
    """`latest`, `all`, the number of an attempt, or its id."""


class WorkerSettings(StoreSettings):
    """Settings of `workers`."""


class ImportSettings(StoreSettings):
    """Settings of `import`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {"Source": ("source", "partition"), **_STORE, **_OUTPUT}

    source: str = Field(json_schema_extra={"argument": True})
    """`mongodb://…/database`, a folder of mongoexport, or the `http://…` of a store server."""
    partition: str | None = None
    """Only records of this partition of a database that several trainers share."""


rollouts_app = typer.Typer(help="The rollouts of a store: list them, look at one, try failed ones again.")
spans_app = typer.Typer(help="The spans of a store: what the attempts of a rollout left behind.")


@settings_command(rollouts_app, "list", RolloutListSettings, log_level="WARNING", has_file=False)
def list_rollouts(settings: RolloutListSettings) -> None:
    """List rollouts, the newest first, with their status, their attempts and why they failed."""
    found, total = _ask(settings, lambda store: _newest(store, settings))

    def tables(console: Console) -> None:
        console.print(rollout_table(found))
        if total > len(found):
            console.print(f"{len(found)} of {counted(total, 'rollout')}; --limit shows more", style="dim")

    show(settings, [as_json(rollout) for rollout in found], tables, ascii_only=True)


@settings_command(rollouts_app, "show", RolloutShowSettings, log_level="WARNING", has_file=False)
def show_rollout(settings: RolloutShowSettings) -> None:
    """Show one rollout: its task, its attempts, its reward, why it failed, and what was said."""

    async def look(store: LightningStore) -> tuple[Rollout, list[dict[str, Any]], list[Span]]:
        rollout = await _find(store, settings.rollout)
        attempts, spans = [], []
        for attempt in await store.query_attempts(rollout.rollout_id):
            found = list(await store.query_spans(rollout.rollout_id, attempt.attempt_id))
            attempts.append({**as_json(attempt), "spans": len(found)})
            spans += found
        return rollout, attempts, spans

    rollout, attempts, spans = _ask(settings, look)
    shown = 10**9 if settings.full else _SHOWN
    told = told_rollout(rollout, attempts, spans, shown=shown if settings.conversation else None)
    show(settings, told.as_json(), told.print, ascii_only=True)


@settings_command(rollouts_app, "retry", RolloutRetrySettings, log_level="WARNING", has_file=False)
def retry_rollouts(settings: RolloutRetrySettings) -> None:
    """Try failed rollouts again.

    What has ended stays as it is, so each is queued as a new rollout of the same task, mode, resources and
    configuration; its metadata names the old one under `retry_of`.
    """

    async def retry(store: LightningStore) -> list[Rollout]:
        from ..store import retry_rollouts

        ids = [(await _find(store, part)).rollout_id for part in settings.rollouts]
        try:
            return await retry_rollouts(store, ids or None)
        except ValueError as error:
            raise UserError(str(error)) from error

    queued = _ask(settings, retry)
    lines = [f"{rollout.metadata['retry_of']} is tried again as {rollout.rollout_id}" for rollout in queued]
    told = "\n".join(lines) or "no failed rollout is left to try again"
    show(settings, [as_json(rollout) for rollout in queued], lambda _: typer.echo(told), ascii_only=True)


@settings_command(spans_app, "show", SpanShowSettings, log_level="WARNING", has_file=False)
def show_spans(settings: SpanShowSettings) -> None:
    """Show the spans of a rollout in the order in which they began: LLM calls, rewards, messages, errors."""

    async def look(store: LightningStore) -> Sequence[Span]:
        rollout = await _find(store, settings.rollout)
        attempt_id = await _attempt_id(store, rollout.rollout_id, settings.attempt)
        return list(await store.query_spans(rollout.rollout_id, attempt_id))

    spans = _ask(settings, look)
    result = [as_json(span) for span in spans]
    show(settings, result, lambda console: console.print(span_table(spans)), ascii_only=True)


def show_workers(settings: WorkerSettings) -> None:
    """List the workers: what each is doing, and when it was last heard of."""
    workers = _ask(settings, lambda store: store.query_workers(sort_by="worker_id"))
    result = [as_json(worker) for worker in workers]
    show(settings, result, lambda console: console.print(worker_table(workers)), ascii_only=True)


def import_records(settings: ImportSettings) -> None:
    """Take over what a store of agent-lightning 0.3 has recorded: rollouts that have ended, with all that is theirs."""
    from ..store import Imported, import_store, open_foreign, open_store

    if settings.store is None:
        raise UserError("say where to: a .db file, postgresql:// or mongodb://", setting="store")
    to = settings.store

    async def take() -> Imported:
        store = open_store(to, api_key=settings.api_key)
        try:
            return await import_store(open_foreign(settings.source, partition=settings.partition), store)
        finally:
            await store.close()

    found = asyncio.run(take())
    result = {name: value for name, value in vars(found).items() if name != "reasons"}
    lines = [
        f"{counted(found.rollouts, 'rollout')}, {counted(found.attempts, 'attempt')}, {counted(found.spans, 'span')} "
        f"and {found.resources} resources taken over; {found.known} rollouts were known",
        *([f"{found.unfinished} rollouts have not ended, and are left out"] if found.unfinished else []),
        *(f"{count} left out: {reason}" for reason, count in found.reasons.most_common(5)),
    ]
    show(settings, result, lambda _: typer.echo("\n".join(lines)), ascii_only=True)


def _ask(settings: StoreSettings, work: Callable[[LightningStore], Awaitable[T]]) -> T:
    """Return what `work` answers about the store of the settings.

    Raises:
        UserError: the store cannot be reached, or does not hold what was asked for.
    """
    from ..store import open_store

    spec = settings.store or _server_address()
    api_key = resolve_str_env_var(LightningEnvVar.AGL_API_KEY, settings.api_key)

    async def ask() -> T:
        store = open_store(spec, api_key=api_key, create=False, retry_seconds=_RETRY_SECONDS)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(ask())


def _server_address() -> str:
    try:
        host = resolve_str_env_var(LightningEnvVar.AGL_SERVER_HOST, fallback="127.0.0.1")
        port = resolve_int_env_var(LightningEnvVar.AGL_SERVER_PORT, fallback=4747)
    except ValueError as error:
        raise UserError(str(error)) from error
    return f"http://{host}:{port}"


async def _newest(store: LightningStore, settings: RolloutListSettings) -> tuple[list[Rollout], int]:
    """The newest rollouts that pass the filters, and how many pass in all."""
    status = settings.status or None
    if settings.mode is None:
        page = await store.query_rollouts(status_in=status, sort_order="desc", limit=settings.limit)
        return list(page), page.total
    everything = await store.query_rollouts(status_in=status, sort_order="desc")
    found = [rollout for rollout in everything if rollout.mode == settings.mode]
    return found if settings.limit == -1 else found[: settings.limit], len(found)


async def _find(store: LightningStore, part: str) -> Rollout:
    """The rollout of this id, or the only one whose id holds this part."""
    exact = await store.get_rollout_by_id(part)
    if exact is not None:
        return exact
    found = await store.query_rollouts(rollout_id_contains=part, limit=1)
    if found.total == 1:
        return found[0]
    if not found.total:
        raise UserError(f"ROLLOUT {part}: the store holds no such rollout; `agl rollouts list` shows those it holds")
    raise UserError(f"ROLLOUT {part}: {found.total} rollouts have this in their id; give more of it")


async def _attempt_id(store: LightningStore, rollout_id: str, wanted: str) -> str | None:
    if wanted in ("latest", "all"):
        return None if wanted == "all" else wanted
    attempts = await store.query_attempts(rollout_id)
    for attempt in attempts:
        if wanted in (attempt.attempt_id, str(attempt.sequence_id)):
            return attempt.attempt_id
    raise UserError(
        f"--attempt {wanted}: rollout {rollout_id} has {len(attempts)} attempts; "
        "expected latest, all, the number of one or its id"
    )
