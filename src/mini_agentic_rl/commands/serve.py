"""`serve`: serve a model over HTTP until a signal stops it."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..config import Settings
from ..errors import UserError
from ..gateway import AnswerSettings, GrammarLimits, ServerSettings, SessionSettings
from ..http import RequestLimits, checked_keys, refuse_open_address
from ..plugins import load_part
from ..policy import AdaptedModelSettings, EngineSettings, LoraSettings
from ..processes import freeze_loaded_objects

if TYPE_CHECKING:
    from ..gateway import MiniLLMServer

logger = logging.getLogger(__name__)

SERVE_SHORT_HELP: Final[Sequence[str]] = (
    *("model", "adapter", "dtype", "device", "quantization", "served_model_name", "tool_format", "learn_from_use"),
    *("host", "port", "api_key", "api_key_file", "drain_seconds", "cache_mib", "max_requests_per_minute"),
    "max_concurrent_requests",
)
"""Settings that `serve --help` shows."""


class ServeSettings(Settings):
    """The settings of `serve`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("load.*", "served_model_name", "answers.*"),
        "Learning from use": ("learn_from_use", "session_store", "sessions.*"),
        "Limits of requests": ("limits.*", "grammars.*"),
        "Server": ("server.*", "engine.cache_mib", "engine.cuda_graphs", "engine.max_waiting"),
    }
    helps: ClassVar[Mapping[str, str]] = {
        "engine.cache_mib": "Size of the key/value cache in MiB; requests that do not fit wait.",
    }

    served_model_name: str | None = None
    """Model name for clients; by default the name of the model's folder, or its Hugging Face id. The model without its
    adapter is NAME-base."""
    learn_from_use: Path | None = None
    """Folder for sessions, which are recorded with consent, and for the versions that `learn` trains on them; a new
    version is served as soon as it is published."""
    session_store: str | None = None
    """Store of the sessions, a URL or a file; by default a file in that folder."""

    sessions: SessionSettings = SessionSettings()
    load: AdaptedModelSettings = AdaptedModelSettings()
    answers: AnswerSettings = AnswerSettings()
    server: ServerSettings = ServerSettings()
    limits: RequestLimits = RequestLimits()
    grammars: GrammarLimits = GrammarLimits()
    engine: EngineSettings = EngineSettings()


@contextmanager
def open_server(settings: ServeSettings) -> Iterator[MiniLLMServer]:
    """Yield a running server of a model in this process; it is stopped at the end of the block.

    Raises:
        UserError: the model, the adapter or the file of keys cannot be read, or the port cannot be opened.
    """
    from ..gateway import GatewayLimits, ServedPolicy

    server, load = settings.server, settings.load
    keys = accepted_keys(server.host, server.api_key, server.api_key_file)
    use: Any = None
    if settings.learn_from_use is not None:
        use = load_part("learning", setting="learn_from_use").UseOfServer(settings)
    published = None if use is None else use.folder.published()
    served = ServedPolicy.load(
        **load.model_dump() | ({} if published is None else {"adapter": published.folder / "adapter"}),
        # A new adapter changes nothing, but gives the model a name beside that of its base.
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


def serve(settings: ServeSettings) -> None:
    """Serve a model or an adapter behind an OpenAI-compatible endpoint until Ctrl-C."""
    serve_until_stopped(open_server(settings))


def serve_until_stopped(opened: AbstractContextManager[Any]) -> None:
    """Open a server and run it until SIGTERM, which finishes the requests under way. A second SIGTERM, or one while the
    model is being loaded, ends the process at once."""
    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        stop.set()

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with opened:
            signal.signal(signal.SIGTERM, on_signal)
            logger.info("Ctrl-C stops it")
            freeze_loaded_objects()
            while not stop.wait(1.0):  # without a timeout Ctrl-C does not interrupt it on Windows
                pass
    finally:
        signal.signal(signal.SIGTERM, before)


def accepted_keys(host: str, given: Sequence[str], file: Path | None) -> list[str]:
    """Return the API keys of a server: the given ones and those of a file, one a line.

    Raises:
        UserError: a key is empty, the file cannot be read or is empty, or there is no key and other computers could
            connect.
    """
    keys = list(checked_keys(given))
    if file is None:
        refuse_open_address(host, keys)
        return keys
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()  # editors on Windows may write a mark
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}", setting="api_key_file") from error
    from_file = [key for line in lines if (key := line.strip())]
    if not from_file:
        raise UserError(f"{file} holds no key: write one on each line", setting="api_key_file")
    return [*keys, *from_file]
