"""`store`: a store behind HTTP until Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Literal

import typer
from pydantic import Field
from pydantic.config import JsonDict

from ..config import LightningEnvVar, Settings, resolve_str_env_var
from ..errors import UserError

Backend = Literal["memory", "sqlite", "postgres", "mongo"]

_EVERYWHERE = ("0.0.0.0", "::")
_SERVER: JsonDict = {"panel": "Server"}
_KEEP: JsonDict = {"panel": "What it keeps the rollouts in"}


class ServeStoreSettings(Settings):
    """Settings of `store`."""

    host: str = Field(default="127.0.0.1", json_schema_extra=_SERVER)
    """Address to listen on; 0.0.0.0 lets other machines in, and then needs --api-key."""
    port: int = Field(default=4747, ge=0, le=65535, json_schema_extra=_SERVER)
    """Port to listen on; 0 takes a free one."""
    api_key: str | None = Field(default=None, json_schema_extra=_SERVER)
    """Key that runners and algorithms must send; by default the environment variable AGL_API_KEY."""

    backend: Backend | None = Field(default=None, json_schema_extra=_KEEP)
    """By default what --path or --url says, and memory without them: that forgets everything when it ends."""
    path: Path | None = Field(default=None, json_schema_extra=_KEEP)
    """SQLite file; it is made if it is not there, and taken up again if it is."""
    url: str | None = Field(default=None, json_schema_extra=_KEEP)
    """Database: postgresql://user:password@host/database or mongodb://host/database."""


def serve(settings: ServeStoreSettings) -> None:
    """Open the store, serve it, and close both at Ctrl-C (or SIGTERM).

    Raises:
        UserError: the settings contradict each other, the store cannot be opened, or the port cannot be had.
    """
    from ..store import LightningStoreServer, open_store

    spec = store_spec(settings.backend, None if settings.path is None else str(settings.path), settings.url)
    api_key = resolve_str_env_var(LightningEnvVar.AGL_API_KEY, settings.api_key)
    store = open_store(spec)
    server = LightningStoreServer(store, settings.host, settings.port, api_key=api_key)

    def announce() -> None:
        for line in announcement(server.endpoint, settings.host, spec, with_key=api_key is not None):
            typer.echo(line)

    async def run() -> None:
        try:
            await server.start()
            asyncio.get_running_loop().call_soon(announce)  # once `run_forever` hears Ctrl-C
            await server.run_forever()
        finally:
            await server.close()

    asyncio.run(run())
    typer.echo("stopped")


def store_spec(backend: Backend | None, path: str | None, url: str | None) -> str:
    """Return what `open_store` takes for these options.

    Raises:
        UserError: they contradict each other, or the one that the backend needs is missing.
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
    expected = {"postgres": ("postgresql", "postgres"), "mongo": ("mongodb",), None: ("postgres", "mongodb", "sqlite")}
    if url is None or not url.startswith(expected[backend]):
        raise UserError(
            f"--url {url or 'is missing'}: expected postgresql://user:password@host/database or "
            "mongodb://host/database, as --backend says"
        )
    return url


def announcement(endpoint: str, host: str, spec: str, *, with_key: bool) -> list[str]:
    """Return the lines that tell a person how to start runners next."""
    from ..store import MEMORY

    address, _, port = endpoint.removeprefix("http://").rpartition(":")
    reached = socket.gethostname() if host in _EVERYWHERE else address
    kept = "in memory only; --path FILE keeps them" if spec == MEMORY else f"in {_without_password(spec)}"
    variables = [f"AGL_SERVER_HOST={reached}", f"AGL_SERVER_PORT={port}", "AGL_MANAGED_STORE=0"]
    if with_key:
        variables.append("AGL_API_KEY=...")
    return [
        f"store server at {endpoint}",
        f"rollouts are kept {kept}",
        f"algorithms and runners elsewhere: export {' '.join(variables)}",
        f"look into it: agl rollouts list --store http://{reached}:{port}",
        "Ctrl-C stops it",
    ]


def _without_password(spec: str) -> str:
    scheme, separator, rest = spec.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2] if separator else rest}"
