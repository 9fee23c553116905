"""An open trace: the spans of one attempt, on their way to the store.

`record` may be called from any thread and never waits; a task on the event loop that opened the trace asks the store
for sequence ids and adds the spans in the order in which they were recorded. It starts as soon as that loop is free, so
what an agent emits before an LLM call is numbered while the call is being sampled, and stands before it. After `close`
every recorded span is in the store, and whatever still comes (from a thread that was given up) is dropped with a log
line.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import Any

from ..store import LightningStore
from ..types import ParallelWorkerBase, Span

logger = logging.getLogger(__name__)

LOCAL_ROLLOUT_ID = "local"
"""Rollout and attempt id of spans that are traced without a store."""


class Trace:
    """Spans of one attempt, on their way to the store. Without a store they stay here, numbered from 1."""

    def __init__(
        self,
        tracer: ParallelWorkerBase,
        store: LightningStore | None,
        rollout_id: str | None,
        attempt_id: str | None,
        recorded: list[Span] | None = None,
    ) -> None:
        if (rollout_id is None) != (attempt_id is None) or (store is not None and rollout_id is None):
            raise ValueError("a trace that goes to a store needs both rollout_id and attempt_id")
        self.tracer = tracer
        self.store = store
        self.rollout_id = rollout_id or LOCAL_ROLLOUT_ID
        self.attempt_id = attempt_id or LOCAL_ROLLOUT_ID
        self.recorded: list[Span] = [] if recorded is None else recorded
        """All spans so far, in the order of their ends; `sequence_id` is 0 until the store has given one."""
        self.root: Any = None
        """Tracer's own handle, by which later spans get the same root."""
        self._loop = asyncio.get_running_loop() if store is not None else None
        self._lock = threading.Lock()
        self._pending: deque[Span] = deque()
        self._draining: asyncio.Task[None] | None = None
        self._scheduled = False
        self._closed = False
        self._error: Exception | None = None

    def continued(self) -> Trace:
        """Return a fresh, open trace of the same attempt that goes on where this one ended."""
        trace = type(self)(self.tracer, self.store, self.rollout_id, self.attempt_id, self.recorded)
        trace.root = self.root
        return trace

    def record(self, span: Span) -> None:
        """Take a span that has ended, and set its rollout, attempt and sequence id."""
        span.rollout_id, span.attempt_id = self.rollout_id, self.attempt_id
        with self._lock:
            if self._closed:
                logger.warning(
                    "span %r came after attempt %s of rollout %s had ended and is dropped",
                    span.name,
                    self.attempt_id,
                    self.rollout_id,
                )
                return
            self.recorded.append(span)
            if self._loop is None:
                span.sequence_id = len(self.recorded)
                return
            self._pending.append(span)
            if self._scheduled:
                return
            self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._start_drain)
        except RuntimeError:
            logger.warning("the event loop of rollout %s is closed: span %r is dropped", self.rollout_id, span.name)

    async def close(self) -> None:
        """Deliver the pending spans, then take no more.

        Raises:
            Exception: whatever the store raised when it was given spans of this trace.
        """
        while True:
            with self._lock:
                if not self._pending and not self._scheduled:
                    self._closed = True
                    break
            if self._draining is None:
                await asyncio.sleep(0)
            else:
                await asyncio.shield(self._draining)
        if self._error is not None:
            raise self._error

    def _start_drain(self) -> None:
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        assert self.store is not None  # a trace without a store never schedules a drain
        while True:
            with self._lock:
                batch = list(self._pending)
                self._pending.clear()
                if not batch:
                    self._scheduled, self._draining = False, None
                    return
            try:
                attempt = (self.rollout_id, self.attempt_id)
                numbers = await self.store.get_many_span_sequence_ids([attempt] * len(batch))
                for span, number in zip(batch, numbers, strict=True):
                    span.sequence_id = number
                await self.store.add_many_spans(batch)
            except Exception as error:  # kept for close(), which has a caller to tell
                logger.warning("the store refused %d spans of rollout %s: %s", len(batch), self.rollout_id, error)
                self._error = error
