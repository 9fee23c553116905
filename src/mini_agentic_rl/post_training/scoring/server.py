"""The reward service on a reward model, served over HTTP from a thread of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from types import TracebackType

from ...gateway.limits import Gate, GatewayLimits
from ...policy import TorchThread
from ...serving import ServerThread
from .app import create_app, queue_of
from .batcher import Batcher
from .metrics import ScoringMetrics
from .reward_model import RewardModel
from .settings import BatchSettings

logger = logging.getLogger(__name__)


class ScoreServer:
    """Scores what clients send, in batches made on the way.

    Args:
        model: scores; used from one thread, on which torch computes.
        thread: that thread; a new one if none is given. It ends with the server.
        host: address to listen on.
        port: port to listen on; 0 takes a free one, which `port` then tells.
        batches: how requests become batches.
        limits: which requests are taken.
        api_keys: bearer tokens that are accepted; without one none is asked for.
    """

    def __init__(
        self,
        model: RewardModel,
        *,
        thread: TorchThread | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        batches: BatchSettings | None = None,
        limits: GatewayLimits | None = None,
        api_keys: Sequence[str] = (),
    ) -> None:
        batches = batches or BatchSettings()
        self.model = model
        self.gate = Gate(limits or GatewayLimits(), api_keys)
        self._torch = thread or TorchThread()
        self.metrics = ScoringMetrics(lambda: queue_of(self.batcher))
        self.batcher = Batcher(model, self._torch, batches, self.metrics.on_batch)
        app = create_app(model, self.batcher, self.gate, self.metrics, batches.max_items)
        self._thread = ServerThread(app, host, port, "reward service")

    @property
    def port(self) -> int:
        """The port it listens on.

        Raises:
            RuntimeError: it has not been started, and any free port was asked for.
        """
        return self._thread.port

    @property
    def url(self) -> str:
        """Its address for clients on this machine: `RemoteReward(server.url)` scores by it."""
        return self._thread.root

    def start(self) -> ScoreServer:
        """Serve; returns once connections are accepted.

        Raises:
            ServerStartError: the address cannot be had; the message names the setting to change.
        """
        self._thread.start()
        logger.info("scoring by %s at %s", self.model.name, self.url)
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """Refuse new requests with status 503 and a `Retry-After`, give those under way `timeout` seconds, then cancel
        them. Blocks until it is done; a stopped server is not started again."""
        started = time.monotonic()
        if self._thread.running:
            self.gate.drain(timeout)
        self._thread.stop(max(0.0, timeout - (time.monotonic() - started)))
        self._torch.close()

    def __enter__(self) -> ScoreServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
