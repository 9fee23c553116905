"""`serve`: a model behind HTTP until it is told to stop."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..gateway import GatewayLimits, MiniLLMServer, ServedPolicy
from ..http import checked_keys
from ..plugins import load_part
from ..policy import LoraSettings
from ..processes import pass_over_what_is_there
from .settings import ServeSettings

logger = logging.getLogger(__name__)


@contextmanager
def open_server(settings: ServeSettings) -> Iterator[MiniLLMServer]:
    """Yield a running server on an in-process policy; it is stopped at the end of the block.

    Raises:
        UserError: the model, the adapter or the file of keys cannot be read, or the port cannot be had.
    """
    server, load = settings.server, settings.load
    keys = accepted_keys(server.api_key, server.api_key_file)
    use: Any = None
    if settings.learn_from_use is not None:
        use = load_part("learning", setting="learn_from_use").UseOfServer(settings)
    published = None if use is None else use.folder.published()
    served = ServedPolicy.load(
        **load.model_dump() | ({} if published is None else {"adapter": published.folder / "adapter"}),
        # A fresh adapter changes nothing, and gives the model a name of its own beside its base.
        lora=None if load.adapter is not None else LoraSettings(),
        engine=settings.engine,
        name=settings.served_model_name,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(served.close, server.drain_seconds)
        sessions: dict[str, Any] = {} if use is None else stack.enter_context(use.of(served, published))
        yield served.serve(
            host=server.host,
            port=server.port,
            api_keys=keys,
            limits=GatewayLimits(**settings.limits.model_dump(), **settings.grammars.model_dump()),
            **settings.answers.model_dump(),
            **sessions,
        )


def serve_job(settings: ServeSettings) -> None:
    """Serve until interrupted or terminated; requests under way are finished first.

    Raises:
        UserError: see `open_server`.
    """
    serve_until_stopped(open_server(settings))


def serve_until_stopped(opened: AbstractContextManager[Any]) -> None:
    """Open a server, and keep it until SIGTERM: one that has drained ends well. A second one ends it at once, and so
    does one that comes while the model is loaded, when there is nothing to finish."""
    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        stop.set()

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with opened:
            signal.signal(signal.SIGTERM, on_signal)
            logger.info("Ctrl-C stops it")
            pass_over_what_is_there()
            stop.wait()
    finally:
        signal.signal(signal.SIGTERM, before)


def accepted_keys(given: Sequence[str], file: Path | None) -> list[str]:
    """Return the API keys of a server: those given, and those in a file.

    Raises:
        UserError: one is empty, the file cannot be read, or holds none.
    """
    keys = list(checked_keys(given))
    if file is None:
        return keys
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}", setting="api_key_file") from error
    found = [key for line in lines if (key := line.strip())]
    if not found:
        raise UserError(f"{file} holds no key: write one on each line", setting="api_key_file")
    return [*keys, *found]
