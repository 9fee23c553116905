"""`serve`, and the server that `chat` talks to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..algorithm.serving import ServedPolicy
from ..gateway.server import MiniLLMServer
from ..policy import LoraSettings
from ..policy.load import Dtype, Quantization
from .settings import ServeSettings

logger = logging.getLogger(__name__)


@contextmanager
def open_server(
    *,
    model: str,
    adapter: Path | None,
    host: str,
    port: int,
    api_key: str | None,
    dtype: Dtype,
    device: str,
    quantization: Quantization,
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
    )
    try:
        yield served.serve(host=host, port=port, api_key=api_key)
    finally:
        served.close()


def serve_job(settings: ServeSettings) -> None:
    """Serve until interrupted."""
    with open_server(
        model=settings.model,
        adapter=settings.adapter,
        host=settings.host,
        port=settings.port,
        api_key=settings.api_key,
        dtype=settings.dtype,
        device=settings.device,
        quantization=settings.quantization,
    ):
        logger.info("Ctrl-C stops it")
        threading.Event().wait()
