"""Results that clients fetch later: each request is answered at once with an id, and asked for by that id until done.

What a client never fetches, and what it has fetched, is forgotten in time; a client that opens ever more requests is
told to wait. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from ..errors import UserError
from ..http import HttpError, OverloadedError
from .errors import RefusedError

logger = logging.getLogger(__name__)

FETCHED_SECONDS: Final = 60.0
"""A result that was fetched is kept for so long, because the client may not have got it."""


class GoneError(HttpError):
    """There is no request of this id, or not any more."""

    status = 410
    kind = "invalid_request_error"


class Promise:
    """A request on its way, and its result when there is one.

    Args:
        request_id: what it is asked for by.
        owner: session of the client.
    """

    def __init__(self, request_id: str, owner: str) -> None:
        self.request_id = request_id
        self.owner = owner
        self.result: Any = None
        self.failure: RefusedError | None = None
        self.fetched_at: float | None = None
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
        """Let the client hear why there is no result."""
        if not self.done:
            self.failure = failure
            self._done.set()

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
        except asyncio.CancelledError:
            self.fail(RefusedError("the request was cancelled"))
            raise
        except Exception as error:  # a fault of ours must fail this request, not those behind it
            logger.exception("request %s failed", self.request_id)
            reason = f"the server failed to do this ({type(error).__name__}); its log says why"
            self.fail(RefusedError(reason, category="server"))

    async def wait(self, seconds: float) -> bool:
        """Wait for the result, at most so long; return True if it is there."""
        try:
            await asyncio.wait_for(self._done.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True


class Promises:
    """The requests of all clients, by their ids.

    Args:
        most: requests of one session at once, from the first byte to the fetched result.
        clock: seconds that never go back.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._open: dict[str, Promise] = {}
        self._fetched: OrderedDict[str, Promise] = OrderedDict()
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def find(self, request_id: str) -> Promise | None:
        """Return the request of an id, if it is known still."""
        self._forget_old()
        return self._open.get(request_id) or self._fetched.get(request_id)

    def get(self, request_id: str) -> Promise:
        """Return the request of an id.

        Raises:
            GoneError: there is none.
        """
        found = self.find(request_id)
        if found is None:
            raise GoneError(f"there is no request {request_id!r} any more: send it again")
        return found

    def open(self, request_id: str, owner: str) -> Promise:
        """Return a new promise.

        Raises:
            OverloadedError: the session has too many.
        """
        if self._counts[owner] >= self._most:
            raise OverloadedError(
                f"this session has {self._most} requests open, which is the most (max_open_requests): fetch results "
                "before sending more"
            )
        self._open[request_id] = promise = Promise(request_id, owner)
        self._counts[owner] += 1
        return promise

    def fetched(self, promise: Promise) -> None:
        """Note that the client has been sent the result; it makes room for another request."""
        if self._open.pop(promise.request_id, None) is not None:
            self._counts[promise.owner] -= 1
            promise.fetched_at = self._clock()
            self._fetched[promise.request_id] = promise

    def drop(self, owner: str) -> None:
        """Cancel and forget all that a session has."""
        for known in (self._open, self._fetched):
            for request_id in [key for key, each in known.items() if each.owner == owner]:
                promise = known.pop(request_id)
                if promise.work is not None:
                    promise.work.cancel()
                promise.fail(RefusedError("the session has ended"))
        del self._counts[owner]

    def _forget_old(self) -> None:
        until = self._clock() - FETCHED_SECONDS
        while self._fetched:
            oldest = next(iter(self._fetched.values()))
            if oldest.fetched_at is not None and oldest.fetched_at > until:
                return
            self._fetched.popitem(last=False)
