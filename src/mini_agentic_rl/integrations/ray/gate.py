"""The store of one runner, which can be kept from claiming: so a runner ends between two rollouts, and never in one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from ...execution.base import ExecutionEvent
from ...store import ForwardingStore, LightningStore, LightningStoreCapabilities, forward_methods
from ...types import AttemptedRollout


class ClaimGate(ForwardingStore):
    """Store of a runner that claims one rollout after the other, and asks for the next when it is done with the last.

    Once the gate is closed it hands out no rollout, and sets the event that ends the runner: at once where the runner
    has none, otherwise when it asks for the next.
    """

    def __init__(self, store: LightningStore, event: ExecutionEvent) -> None:
        self._store = store
        self._event = event
        self._lock = threading.Lock()
        self._closed = False
        self._busy = False

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._store.capabilities

    def otlp_traces_endpoint(self) -> str:
        return self._store.otlp_traces_endpoint()

    def shut(self) -> None:
        """Let nothing more be claimed; from any thread."""
        with self._lock:
            self._closed = True
            if not self._busy:
                self._event.set()

    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:
        if not self._admitted():
            return None
        claimed: AttemptedRollout | None = None
        try:
            claimed = await self._store.dequeue_rollout(worker_id)
            return claimed
        finally:
            with self._lock:
                self._busy = claimed is not None
                if self._closed and not self._busy:
                    self._event.set()

    def _admitted(self) -> bool:
        with self._lock:
            self._busy = not self._closed
            if self._closed:
                self._event.set()
            return self._busy

    async def wait_for_work(self, timeout: float) -> bool:
        if self._closed:
            await asyncio.sleep(timeout)  # the event ends it sooner
            return False
        return await self._store.wait_for_work(timeout)

    async def close(self) -> None:
        await self._store.close()

    async def _forward(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await getattr(self._store, name)(*args, **kwargs)


forward_methods(ClaimGate)
