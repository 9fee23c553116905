"""`dashboard`: serves pages over runs and stores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import typer
from pydantic import Field

from ...commands import CompareSettings
from ...commands.options import STORE, settings_command
from ...commands.store_commands import StoreSettings
from ...config import LightningEnvVar, resolve_str_env_var, restated
from ...errors import UserError
from ...gateway import AddressSettings, ServerSettings
from ...processes import freeze_loaded_objects, serve_until_signal

_EXAMPLE = "mini-agentic-rl dashboard outputs/math-agent"


class DashboardSettings(AddressSettings):
    """Settings of `dashboard`."""

    defaults: ClassVar[Mapping[str, Any]] = {"port": 8090, "drain_seconds": 1.0}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "What to show": ("runs", "store", "store_api_key"),
        "Server": ("host", "port", "drain_seconds", "api_key", "api_key_file"),
    }

    runs: list[Path] = restated(CompareSettings, "runs", [], "Folders of runs, which are shown side by side.")
    store: str | None = restated(
        StoreSettings,
        "store",
        None,
        "A store to show beside them: http://… of a store server, a .db file, postgresql://… or mongodb://….",
    )
    store_api_key: str | None = Field(default=None, repr=False)
    """Key of that store server; by default the environment variable AGL_API_KEY."""
    api_key: list[str] = restated(
        ServerSettings,
        "api_key",
        [],
        "Key that the page asks for; give it several times for several people. Needed where --host lets others in.",
    )
    api_key_file: Path | None = restated(ServerSettings, "api_key_file", None)


def show_dashboard(settings: DashboardSettings) -> None:
    """Show runs, rollouts, groups and tokens in a browser, live while a training writes, until Ctrl-C. Only reads."""
    from ...commands import accepted_keys
    from ...store import open_store
    from . import DashboardServer, run_sources, store_source

    sources = run_sources(settings.runs)
    if settings.store is not None:
        key = resolve_str_env_var(LightningEnvVar.AGL_API_KEY, settings.store_api_key)
        sources.append(store_source(open_store(settings.store, api_key=key, create=False), owned=True))
    if not sources:
        raise UserError(f"there is nothing to show: name the folder of a run, as in {_EXAMPLE}, or a `store`")
    keys = accepted_keys(settings.host, settings.api_key, settings.api_key_file)
    server = DashboardServer(sources, settings.host, settings.port, api_keys=keys)

    async def run() -> None:
        await asyncio.to_thread(server.start)
        freeze_loaded_objects()
        needs_key = " (it asks for the key)" if keys else ""
        typer.echo(f"the dashboard is at {server.root}/{needs_key}; Ctrl-C stops it")
        stopping = lambda: asyncio.to_thread(server.stop, settings.drain_seconds)  # noqa: E731
        if not await serve_until_signal(lambda: server.running, stopping):
            raise RuntimeError("the dashboard ended unexpectedly; the log says why")

    asyncio.run(run())
    typer.echo("stopped")


def add_dashboard_command(app: typer.Typer) -> None:
    """Add `dashboard` to the commands of the package."""
    settings_command(app, "dashboard", DashboardSettings, log_level="WARNING", panel=STORE, has_file=False)(
        show_dashboard
    )
