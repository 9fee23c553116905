"""`tinker`: the Tinker API on a model of this computer, until Ctrl-C."""

from __future__ import annotations

import asyncio

import typer

from ...commands.options import SERVE, settings_command
from ...processes import serve_until_signal
from . import TinkerSettings

_SHORT_HELP = (
    *("model", "dtype", "device", "quantization", "served_names", "output_dir", "max_trained_adapters", "max_rank"),
    *("max_batch_tokens", "cache_mib", "host", "port", "api_key", "api_key_file"),
)


def serve_tinker(settings: TinkerSettings) -> None:
    """Serve the Tinker API: its clients train adapters of their own on one model here, and sample with them."""
    from . import open_tinker_server

    with open_tinker_server(settings) as server:
        key = "a key of this server" if server.admission.keys.first else "any that begins with tml-"
        typer.echo(f"TINKER_BASE_URL={server.root}")
        typer.echo(f"TINKER_API_KEY is {key}; the model is {server.service.model.names[0]!r}; Ctrl-C stops it")
        stopping = lambda: asyncio.to_thread(server.stop, settings.server.drain_seconds)  # noqa: E731
        if not asyncio.run(serve_until_signal(lambda: server.running, stopping)):
            raise RuntimeError("the server ended unexpectedly; the log says why")
    typer.echo("stopped")


def add_tinker_command(app: typer.Typer) -> None:
    """Add `tinker` to the commands of the package."""
    settings_command(app, "tinker", TinkerSettings, panel=SERVE, short_help=_SHORT_HELP)(serve_tinker)
