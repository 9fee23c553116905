"""The requests of one training client, done one after the other in the order of their numbers.

A client numbers its requests and sends some of them at the same time, so that they arrive in any order: number n waits
until n - 1 is done. A number that never comes would hold the rest up for ever, so after a while those behind it fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ...http import BadRequestError
from .errors import RefusedError
from .promises import Promise

Work = Callable[[], Awaitable[Any]]


class NumberedTurns:
    """Turns of one client.

    Args:
        next_number: number of its first request.
        gap_seconds: time that a missing request has to arrive.
    """

    def __init__(self, next_number: int, gap_seconds: float) -> None:
        self.next_number = next_number
        self._gap_seconds = gap_seconds
        self._waiting: dict[int, Promise] = {}
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def length(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def number(self, given: int | None) -> int:
        """Return the number of a request: the one it has, or else the next one that is free.

        Raises:
            BadRequestError: the turn of that number is over.
        """
        if given is None:
            return max(self._waiting, default=self.next_number - 1) + 1
        if given < self.next_number:
            raise BadRequestError(f"seq_id {given} was served already: the next one is {self.next_number}")
        return given

    def put(self, number: int, promise: Promise, work: Work) -> None:
        """Let a request wait for its turn."""
        promise.todo = work
        self._waiting[number] = promise
        self._arrived.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """End the turns; what waits has to be failed by whoever knows why."""
        if self._task is not None:
            self._task.cancel()
        self._waiting.clear()

    async def _run(self) -> None:
        while self._waiting:
            if self.next_number not in self._waiting:
                self._arrived.clear()
                try:
                    await asyncio.wait_for(self._arrived.wait(), self._gap_seconds)
                except asyncio.TimeoutError:
                    self._give_up()
                continue
            promise = self._waiting.pop(self.next_number)
            work, promise.todo = promise.todo, None
            if work is None:  # cancelled
                self.next_number += 1
                continue
            # In a task of its own, so that cancelling one request does not end the turns of all.
            promise.work = asyncio.create_task(promise.settle(work))
            try:
                await asyncio.wait([promise.work])
            finally:
                self.next_number += 1

    def _give_up(self) -> None:
        missing = self.next_number
        self.next_number = max(self._waiting) + 1
        for promise in self._waiting.values():
            promise.todo = None
            promise.fail(RefusedError(f"request number {missing} of this client never arrived, which this one follows"))
        self._waiting.clear()
