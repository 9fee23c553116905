"""`score-server`: a reward model behind HTTP until it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..gateway import GatewayLimits
from ..http import RequestLimits
from ..policy import TorchThread
from ..post_training.scoring import BatchSettings, ScoreServer, ScoreServerSettings, TextLimits, load_scorer
from .serve import accepted_keys

logger = logging.getLogger(__name__)


@contextmanager
def open_score_server(settings: ScoreServerSettings) -> Iterator[ScoreServer]:
    """A running server, drained and stopped at the end of the block.

    Raises:
        UserError: the model cannot be loaded, the file of keys cannot be read, or the port cannot be had.
    """
    keys = accepted_keys(settings.api_key, settings.api_key_file)
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
    finally:
        thread.close()


def score_job(settings: ScoreServerSettings) -> None:
    """Serve until interrupted or terminated; requests under way are finished first.

    Raises:
        UserError: see `open_score_server`.
    """
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with open_score_server(settings):
            logger.info("Ctrl-C stops it")
            stop.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
