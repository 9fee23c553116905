"""Results that clients fetch later: each request is answered at once with an id, by which the client polls the result.

Results are dropped a while after they were fetched; a client with too many open requests gets 429. Used from one event
loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from ...errors import UserError
from ...http import BadRequestError, HttpError, OverloadedError
from .settings import RefusedError

logger = logging.getLogger(__name__)


FETCHED_SECONDS: Final = 60.0
"""How long a fetched result is kept, in case the client did not receive it."""


class GoneError(HttpError):
    """There is no request of this id, or it was dropped."""

    status = 410
    kind = "invalid_request_error"


class Promise:
    """A request in progress, and its result or failure once it is done.

    Args:
        request_id: id by which the client fetches the result.
        session_id: the client's session.
        owner: owner of the session.
        size: bytes of data in the request.
    """

    def __init__(self, request_id: str, session_id: str, owner: str = "", size: int = 0) -> None:
        self.request_id = request_id
        self.session_id = session_id
        self.owner = owner
        self.size = size
        self.result: Any = None
        self.failure: RefusedError | None = None
        self.fetched_at: float | None = None
        self.todo: Callable[[], Awaitable[Any]] | None = None
        """The work, until it begins; cancelling before that frees its data."""
        self.work: asyncio.Task[None] | None = None
        self._done = asyncio.Event()

    @property
    def done(self) -> bool:
        """True once it has a result or a failure."""
        return self._done.is_set()

    def keep(self, result: Any) -> None:
        """Fulfil it."""
        if not self.done:
            self.result = result
            self._done.set()

    def fail(self, failure: RefusedError) -> None:
        """Set the reason why there is no result."""
        if not self.done:
            self.failure = failure
            self._done.set()

    def cancel(self, reason: str = "the request was cancelled") -> None:
        """Cancel it unless it is done; work that has not begun never does."""
        self.todo = None
        if self.work is not None:
            self.work.cancel()
        self.fail(RefusedError(reason))

    async def settle(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Do the work, and keep its result or its failure."""
        try:
            self.keep(await work())
        except RefusedError as error:
            self.fail(error)
        except HttpError as error:
            self.fail(RefusedError(error.message, category="user" if error.status < 500 else "server"))
        except UserError as error:
            self.fail(RefusedError(str(error)))
        except OSError as error:  # of the disk
            logger.error("request %s failed: %s", self.request_id, error)
            self.fail(RefusedError(f"the server could not do this: {error.strerror or error}", category="server"))
        except asyncio.CancelledError:
            self.fail(RefusedError("the request was cancelled"))
            raise
        except Exception as error:  # an unforeseen error fails this request, not those behind it
            logger.exception("request %s failed", self.request_id)
            reason = f"the server failed to do this ({type(error).__name__}); its log says why"
            self.fail(RefusedError(reason, category="server"))

    async def wait(self, seconds: float) -> bool:
        """Wait for the result for at most `seconds`; return True if it is there."""
        try:
            await asyncio.wait_for(self._done.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True


class Promises:
    """The requests of all clients, by their ids.

    Args:
        most: most open requests of one session, from their arrival to the fetched result.
        most_bytes: most bytes of data in them.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, most: int, most_bytes: int = 1 << 29, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._clock = clock
        self._open: dict[str, Promise] = {}
        self._fetched: OrderedDict[str, Promise] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._sizes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def find(self, request_id: str) -> Promise | None:
        """Return the request of an id; None if it is unknown or was dropped."""
        self._forget_old()
        return self._open.get(request_id) or self._fetched.get(request_id)

    def get(self, request_id: str, owner: str = "") -> Promise:
        """Return the request of an id."""
        promise = self.find(request_id)
        if promise is None or promise.owner != owner:
            raise GoneError(f"there is no request {request_id!r} any more: send it again")
        return promise

    def open(self, request_id: str, session_id: str, owner: str = "", size: int = 0) -> Promise:
        """Return a new promise; see `Promise`."""
        if self._counts[session_id] >= self._most:
            raise OverloadedError(
                f"this session has {self._most} requests open, which is the most (max_open_requests): fetch results "
                "before sending more"
            )
        if self._sizes[session_id] and self._sizes[session_id] + size > self._most_bytes:
            raise OverloadedError(
                f"the open requests of this session hold {self._sizes[session_id]} bytes of data, and "
                f"{self._most_bytes} are the most (max_open_mib): fetch results before sending more"
            )
        self._open[request_id] = promise = Promise(request_id, session_id, owner, size)
        self._counts[session_id] += 1
        self._sizes[session_id] += size
        return promise

    def fetched(self, promise: Promise) -> None:
        """Mark the result as sent to the client, which frees its place."""
        if self._open.pop(promise.request_id, None) is not None:
            self._counts[promise.session_id] -= 1
            self._sizes[promise.session_id] -= promise.size
            promise.fetched_at = self._clock()
            self._fetched[promise.request_id] = promise

    def drop(self, session_id: str) -> None:
        """Cancel and drop all requests of a session."""
        for known in (self._open, self._fetched):
            for request_id in [key for key, each in known.items() if each.session_id == session_id]:
                known.pop(request_id).cancel("the session has ended")
        del self._counts[session_id], self._sizes[session_id]

    def _forget_old(self) -> None:
        until = self._clock() - FETCHED_SECONDS
        while self._fetched:
            oldest = next(iter(self._fetched.values()))
            if oldest.fetched_at is not None and oldest.fetched_at > until:
                return
            self._fetched.popitem(last=False)


# The requests of one training client run in the order of their numbers: number n waits until n - 1 is done. Clients
# send requests in parallel, so they arrive in any order. If a number does not arrive in time, those behind it fail.


Work = Callable[[], Awaitable[Any]]


class NumberedTurns:
    """Queue of one client's numbered requests.

    Args:
        next_number: number of its first request.
        gap_seconds: time to wait for a missing request.
    """

    def __init__(self, next_number: int, gap_seconds: float) -> None:
        self.next_number = next_number
        self._gap_seconds = gap_seconds
        self._waiting: dict[int, Promise] = {}
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def number(self, given: int | None) -> int:
        """Return the number of a request: the given one, or else the next free one."""
        if given is None:
            return max(self._waiting, default=self.next_number - 1) + 1
        if given < self.next_number:
            raise BadRequestError(f"seq_id {given} was served already: the next one is {self.next_number}")
        return given

    def put(self, number: int, promise: Promise, work: Work) -> None:
        """Queue a request."""
        promise.todo = work
        self._waiting[number] = promise
        self._arrived.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Stop; the caller fails the waiting requests."""
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
            # In a separate task, so that cancelling one request does not cancel the queue.
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
