"""`score-server`: serves a reward model over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from ...commands.options import SERVE, settings_command
from ...gateway import GatewayLimits
from ...http import RequestLimits
from .rendering import BatchSettings, ScoreServerSettings, TextLimits

if TYPE_CHECKING:
    from .server import ScoreServer


@contextmanager
def open_score_server(settings: ScoreServerSettings) -> Iterator[ScoreServer]:
    """Yield a running score server, which is drained and stopped at the end of the block.

    Raises:
        UserError: the model cannot be loaded, the file of keys cannot be read, or the port is in use.
    """
    from ...commands import accepted_keys
    from ...policy import TorchThread
    from .reward_model import load_scorer
    from .server import ScoreServer

    keys = accepted_keys(settings.host, settings.api_key, settings.api_key_file)
    batches = BatchSettings(**{name: getattr(settings, name) for name in BatchSettings.model_fields})
    texts = TextLimits(**{name: getattr(settings, name) for name in TextLimits.model_fields})
    limits = GatewayLimits(**{name: getattr(settings, name) for name in RequestLimits.model_fields})
    thread = TorchThread()
    try:
        model = thread.call(
            lambda: load_scorer(settings.model, device=settings.device, dtype=settings.dtype, limits=texts)
        )
        server = ScoreServer(
            model,
            thread=thread,
            host=settings.host,
            port=settings.port,
            batches=batches,
            limits=limits,
            api_keys=keys,
        )
        with server:
            yield server
            server.stop(settings.drain_seconds)
    finally:
        thread.close()


def score_server(settings: ScoreServerSettings) -> None:
    """Serve a reward model, which scores and compares answers, until Ctrl-C."""
    from ...commands import serve_until_stopped

    serve_until_stopped(open_score_server(settings))


def add_score_command(app: typer.Typer) -> None:
    """Add `score-server` to the commands of the package."""
    settings_command(app, "score-server", ScoreServerSettings, panel=SERVE)(score_server)
