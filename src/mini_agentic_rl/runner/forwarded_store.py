"""The store in an agent's own process: every call travels to the runner's process and is made there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from typing import Any

from ..store import ForwardingStore, LightningStore, LightningStoreCapabilities, forward_methods
from .calls import settle
from .processes import Channel


class ForwardedStore(ForwardingStore):
    """Callable from every thread and event loop of its process. Every async method of the contract is forwarded, under
    its own signature (see the end of this module), except `close`: the store belongs to the other process.
    """

    def __init__(self, channel: Channel, capabilities: LightningStoreCapabilities, otlp_endpoint: str | None) -> None:
        self._channel = channel
        self._capabilities = capabilities
        self._otlp_endpoint = otlp_endpoint
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=False, otlp_traces=self._capabilities["otlp_traces"]
        )

    def otlp_traces_endpoint(self) -> str:
        return super().otlp_traces_endpoint() if self._otlp_endpoint is None else self._otlp_endpoint

    async def close(self) -> None:
        """Do nothing."""

    def resolve(self, number: int, succeeded: bool, value: Any) -> None:
        """Take the answer to a call: what it returned, or the exception that it raised. For the receiving thread."""
        with self._lock:
            future = self._waiting.pop(number, None)
        if future is not None:
            with contextlib.suppress(RuntimeError):  # its event loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(settle, future, *((value,) if succeeded else (None, value)))

    def fail_waiting(self, error: Exception) -> None:
        """Fail every call that waits: an answer has come that cannot be read. For the receiving thread."""
        with self._lock:
            numbers = list(self._waiting)
        for number in numbers:
            self.resolve(number, False, RuntimeError(f"the answer of the store cannot be read here: {error!r}"))

    async def _forward(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
        try:
            self._channel.send(("call", number, name, args, kwargs))
            return await future
        finally:
            with self._lock:
                self._waiting.pop(number, None)


def offered_to_agents(store: LightningStore) -> tuple[LightningStoreCapabilities, str | None]:
    """Return what a `ForwardedStore` has to know of the real one."""
    capabilities = store.capabilities
    return capabilities, store.otlp_traces_endpoint() if capabilities["otlp_traces"] else None


forward_methods(ForwardedStore)
