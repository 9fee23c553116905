"""The store in memory: for one process, with any number of threads and event loops, without copies.

Objects that come out are the very objects that the store holds, and spans and tasks are held as they were given. The
store never changes one in place: it replaces it, so a snapshot stays what it was. Callers must not change them either.
The cost of an operation does not grow with the number of rollouts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ..types import Span
from .capabilities import LightningStoreCapabilities
from .ledger import Ledger
from .ledger_store import LedgerStore
from .memory_tables import MemoryTables
from .waiting import Changes

T = TypeVar("T")

logger = logging.getLogger(__name__)


class InMemoryLightningStore(LedgerStore):
    """Store that lives as long as its process.

    Args:
        scan_debounce_seconds: Attempts are checked against their limits at most this often by ordinary calls. 0: by
            every call; that costs next to nothing here. Waiting calls check whenever a limit is reached.
        thread_safe: Taken, and of no effect: it always is.
        eviction_memory_threshold, safe_memory_threshold, span_size_estimator, tracker: Agent-lightning's limits of
            memory, and its measurements. They have no effect: no span is ever thrown away to make room. A
            `SqlLightningStore` holds what memory does not.
    """

    def __init__(
        self,
        *,
        scan_debounce_seconds: float = 0.0,
        thread_safe: bool = True,
        eviction_memory_threshold: float | None = None,
        safe_memory_threshold: float | None = None,
        span_size_estimator: Callable[[Span], int] | None = None,
        tracker: Any = None,
    ) -> None:
        super().__init__()
        unused = {
            "eviction_memory_threshold": eviction_memory_threshold,
            "safe_memory_threshold": safe_memory_threshold,
            "span_size_estimator": span_size_estimator,
            "tracker": tracker,
        }
        for name, value in unused.items():
            if value is not None:
                logger.warning("InMemoryLightningStore(%s=…) has no effect: spans are never thrown away here", name)
        self._scan_debounce_seconds = scan_debounce_seconds
        self._last_scan = float("-inf")
        self._lock = threading.Lock()
        self._ledger = Ledger(MemoryTables())

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(thread_safe=True, async_safe=True, zero_copy=False, otlp_traces=False)

    async def _write(self, operation: Callable[[Ledger], T], *, check_health: bool = False, rows: int = 1) -> T:
        return self._run(operation, check_health)

    async def _read(self, operation: Callable[[Ledger], T]) -> T:
        return self._run(operation, False)

    def _run(self, operation: Callable[[Ledger], T], check_health: bool) -> T:
        ledger = self._ledger
        with self._lock:
            try:
                jumped = self._clock.jumped()
                if ledger.tables.next_deadline() is not None:
                    self._check_health(check_health or jumped)
                return operation(ledger)
            finally:
                if ledger.changes:
                    self._notifier.announce(ledger.changes)
                    ledger.changes = Changes()

    def _check_health(self, forced: bool) -> None:
        now = time.monotonic()
        if forced or now - self._last_scan >= self._scan_debounce_seconds:
            self._last_scan = now
            self._ledger.check_health(self._clock.look_for_scan())
