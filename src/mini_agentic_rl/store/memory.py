"""The store in memory: for one process, any number of its threads and event loops, no copies.

Objects that come out are the very objects that the store holds, and spans and tasks are held as they were given. The
store never changes one in place: it replaces it, so a snapshot stays what it was. Callers must not change them either.
The cost of an operation does not grow with the number of rollouts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from .base import LightningStoreCapabilities
from .ledger import Ledger
from .ledger_store import LedgerStore
from .memory_tables import MemoryTables
from .waiting import Changes

T = TypeVar("T")


class InMemoryLightningStore(LedgerStore):
    """A store that lives as long as its process.

    Args:
        scan_debounce_seconds: Attempts are checked against their limits at most this often by ordinary calls. 0: by
            every call; that costs next to nothing here. Waiting calls check whenever a limit is reached.
    """

    def __init__(self, *, scan_debounce_seconds: float = 0.0) -> None:
        super().__init__()
        self._scan_debounce_seconds = scan_debounce_seconds
        self._last_scan = float("-inf")
        self._lock = threading.Lock()
        self._ledger = Ledger(MemoryTables())

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(thread_safe=True, async_safe=True, zero_copy=False, otlp_traces=False)

    async def _write(self, operation: Callable[[Ledger], T], *, check_health: bool = False) -> T:
        return self._run(operation, check_health)

    async def _read(self, operation: Callable[[Ledger], T]) -> T:
        return self._run(operation, False)

    def _run(self, operation: Callable[[Ledger], T], check_health: bool) -> T:
        ledger = self._ledger
        with self._lock:
            try:
                if ledger.tables.next_deadline() is not None:
                    self._check_health(check_health)
                return operation(ledger)
            finally:
                if ledger.changes:
                    self._switchboard.announce(ledger.changes)
                    ledger.changes = Changes()

    def _check_health(self, forced: bool) -> None:
        now = time.monotonic()
        if forced or now - self._last_scan >= self._scan_debounce_seconds:
            self._last_scan = now
            self._ledger.check_health(time.time())
