"""`store`: serve a store over HTTP until Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import typer
from pydantic import Field

from ..config import LightningEnvVar, resolve_str_env_var, restated
from ..errors import UserError
from ..gateway import AddressSettings, ServerSettings
from ..plugins import load_part, plugin_has
from ..processes import freeze_loaded_objects
from ..redaction import without_secrets
from ..store import StoreLimits
from ..trainer import TraceExportSettings

Backend = Literal["memory", "sqlite", "postgres", "mongo"]

_EVERYWHERE = ("0.0.0.0", "::")


class ServeStoreSettings(StoreLimits, AddressSettings, TraceExportSettings):
    """Settings of `store`."""

    defaults: ClassVar[Mapping[str, Any]] = {**StoreLimits.defaults, "port": 4747}
    helps: ClassVar[Mapping[str, str]] = {
        "host": "Address to listen on; 0.0.0.0 lets other machines in, and then needs --api-key.",
        "max_requests_per_minute": "At most this many requests a minute, of all clients together; further ones are "
        "refused and clients retry. No limit by default.",
        "max_concurrent_requests": "At most this many requests at the same time, without those that wait for work or "
        "for the end of rollouts; further ones are refused and clients retry. No limit by default.",
    }
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Server": ("host", "port", "drain_seconds", "api_key", "cors_origin"),
        "Storage": ("backend", "path", "url"),
        "Traces for other tools": tuple(TraceExportSettings.model_fields),
        "Limits of requests": tuple(StoreLimits.model_fields),
    }

    api_key: str | None = restated(
        ServerSettings,
        "api_key",
        None,
        "Key that runners and algorithms must send; by default the environment variable AGL_API_KEY.",
    )

    cors_origin: list[str] = Field(default=[])
    """Origin of a web page that may use the store from a browser (https://host), or * for every page; may be given
    several times."""

    backend: Backend | None = None
    """Kind of storage; by default that of --path or --url, else memory, which is lost when the server ends."""
    path: Path | None = None
    """SQLite file; created if it does not exist."""
    url: str | None = None
    """Database: postgresql://user:password@host/database or mongodb://host/database."""


def serve_store(settings: ServeStoreSettings) -> None:
    """Serve a store over HTTP until Ctrl-C, for an algorithm and runners in other terminals or on other machines."""
    from ..store import LightningStoreServer, open_store
    from ..trainer import exported

    spec = store_spec(settings.backend, None if settings.path is None else str(settings.path), settings.url)
    api_key = resolve_str_env_var(LightningEnvVar.AGL_API_KEY, settings.api_key)
    store = open_store(spec)
    dashboard = load_part("dashboard") if plugin_has("parts", "dashboard") else None
    source = None if dashboard is None else dashboard.store_source(store)

    async def run(server: LightningStoreServer) -> None:
        try:
            await server.start()
            freeze_loaded_objects()
            lines = _announcement(server.endpoint, settings.host, spec, with_key=api_key is not None)
            # once `run_forever` handles Ctrl-C
            asyncio.get_running_loop().call_soon(typer.echo, "\n".join(lines))
            await server.run_forever(settings.drain_seconds)
        finally:
            if source is not None:
                await source.close()
            await server.close()

    export = TraceExportSettings(**{name: getattr(settings, name) for name in TraceExportSettings.model_fields})
    with exported(store, export, agent="agent") as shared:
        server = LightningStoreServer(
            shared,
            settings.host,
            settings.port,
            api_key=api_key,
            limits=StoreLimits(**{name: getattr(settings, name) for name in StoreLimits.model_fields}),
            cors_allow_origins=settings.cors_origin,
            pages=None if dashboard is None else partial(dashboard.dashboard_pages, [source]),
        )
        asyncio.run(run(server))
    typer.echo("stopped")


def store_spec(backend: Backend | None, path: str | None, url: str | None) -> str:
    """Return the address of a store for `open_store`.

    Raises:
        UserError: the options contradict each other, or the one that the backend needs is missing.
    """
    from ..store import MEMORY

    if path is not None and url is not None:
        raise UserError("--path and --url contradict each other: give one of them")
    if backend == "memory" or (backend is None and path is None and url is None):
        if path is not None or url is not None:
            raise UserError("--backend memory keeps nothing: leave out --path and --url, or the backend")
        return MEMORY
    if backend == "sqlite" or path is not None:
        if backend not in (None, "sqlite") or path is None:
            raise UserError(f"--backend {backend} needs {'--path, a file' if backend == 'sqlite' else '--url'}")
        return path
    schemes = {"postgres": ("postgres",), "mongo": ("mongodb",), None: ("postgres", "mongodb", "sqlite")}
    if url is None or not url.startswith(schemes[backend]):
        forms = {"postgres": "postgresql://host/database", "mongo": "mongodb://host/database"}
        raise UserError(f"--url {url or 'is missing'}: expected {forms.get(str(backend), ' or '.join(forms.values()))}")
    return url


def _announcement(endpoint: str, host: str, spec: str, *, with_key: bool) -> list[str]:
    """Return lines that say how to start runners and where to look."""
    from ..store import MEMORY

    address, _, port = endpoint.removeprefix("http://").rpartition(":")
    reached = socket.gethostname() if host in _EVERYWHERE else address
    kept = "in memory only; --path FILE keeps them" if spec == MEMORY else f"in {without_secrets(spec)}"
    variables = [f"AGL_SERVER_HOST={reached}", f"AGL_SERVER_PORT={port}", "AGL_MANAGED_STORE=0"]
    if with_key:
        variables.append("AGL_API_KEY=...")
    return [
        f"serving the store at {endpoint}",
        f"rollouts are kept {kept}",
        f"environment variables of algorithms and runners elsewhere: {' '.join(variables)}",
        f"look into it: agl rollouts list --store http://{reached}:{port}, or open http://{reached}:{port}/",
        "Ctrl-C stops it",
    ]
