"""`serve`, and the server that `chat` talks to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError
from ..gateway import GatewayLimits, MiniLLMServer, ServedPolicy, ThinkingName, ToolFormatName
from ..http import RequestLimits
from ..policy import Dtype, EngineSettings, LoraSettings, Quantization
from .settings import ServeSettings

logger = logging.getLogger(__name__)


@contextmanager
def open_server(
    *,
    model: str,
    adapter: Path | None,
    host: str,
    port: int,
    dtype: Dtype,
    device: str,
    quantization: Quantization,
    api_keys: Sequence[str] = (),
    limits: GatewayLimits | None = None,
    tool_format: ToolFormatName = "auto",
    thinking: ThinkingName = "auto",
    engine: EngineSettings | None = None,
) -> Iterator[MiniLLMServer]:
    """A running server on an in-process policy, stopped at the end of the block.

    Raises:
        UserError: the model or the adapter cannot be loaded, or the port cannot be had.
    """
    served = ServedPolicy.load(
        model,
        adapter=adapter,
        # A fresh adapter changes nothing, and gives the model a name of its own beside its base.
        lora=None if adapter is not None else LoraSettings(),
        dtype=dtype,
        device=device,
        quantization=quantization,
        engine=engine,
    )
    try:
        yield served.serve(
            host=host, port=port, api_keys=api_keys, limits=limits, tool_format=tool_format, thinking=thinking
        )
    finally:
        served.close()


def serve_job(settings: ServeSettings) -> None:
    """Serve until interrupted.

    Raises:
        UserError: the file of keys cannot be read, or holds none.
    """
    with open_server(
        model=settings.model,
        adapter=settings.adapter,
        host=settings.host,
        port=settings.port,
        dtype=settings.dtype,
        device=settings.device,
        quantization=settings.quantization,
        api_keys=accepted_keys(settings.api_key, settings.api_key_file),
        limits=GatewayLimits(**{name: getattr(settings, name) for name in RequestLimits.model_fields}),
        tool_format=settings.tool_format,
        thinking=settings.thinking,
        engine=EngineSettings(cache_mib=settings.cache_mib, max_waiting=settings.max_waiting),
    ):
        logger.info("Ctrl-C stops it")
        threading.Event().wait()


def accepted_keys(given: Sequence[str], file: Path | None) -> list[str]:
    """The API keys of a server: those given, and those in the file of `--api-key-file`.

    Raises:
        UserError: the file cannot be read, or holds none.
    """
    if file is None:
        return list(given)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--api-key-file {file} cannot be read: {error}") from error
    found = [key for line in lines if (key := line.strip())]
    if not found:
        raise UserError(f"--api-key-file {file} holds no key: write one on each line")
    return [*given, *found]
