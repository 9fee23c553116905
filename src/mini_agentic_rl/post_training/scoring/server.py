"""The reward service on a reward model, served over HTTP from a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...http import Admission, AdmittingServer, RequestLimits
from ...policy import TorchThread
from .app import create_app, queue_of
from .batcher import Batcher
from .metrics import ScoringMetrics
from .reward_model import RewardModel
from .settings import BatchSettings

logger = logging.getLogger(__name__)


class ScoreServer(AdmittingServer):
    """Score what clients send, in batches made on the way.

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
        limits: RequestLimits | None = None,
        api_keys: Sequence[str] = (),
    ) -> None:
        batches = batches or BatchSettings()
        self.model = model
        self._torch = thread or TorchThread()
        self.metrics = ScoringMetrics(lambda: queue_of(self.batcher))
        self.batcher = Batcher(model, self._torch, batches, self.metrics.on_batch)
        admission = Admission(limits or RequestLimits(), api_keys)
        app = create_app(model, self.batcher, admission, self.metrics, batches.max_items)
        super().__init__(app, admission, host, port, "reward service")

    @property
    def url(self) -> str:
        """Its address for clients on this machine: `RemoteReward(server.url)` scores by it."""
        return self.root

    def announce(self) -> None:
        logger.info("scoring by %s at %s", self.model.name, self.url)

    def stop(self, timeout: float = 10.0) -> None:
        """Refuse new requests with status 503 and a `Retry-After`, give those under way `timeout` seconds, then cancel
        them. Blocks until it is done; a stopped server is not started again."""
        super().stop(timeout)
        self._torch.close()
