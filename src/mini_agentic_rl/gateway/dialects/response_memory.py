"""Memory of responses, so that a client can continue a conversation by `previous_response_id`."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...http import BadRequestError, encode
from ..errors import NotFoundError

_ENTRY_BYTES: Final = 1024
"""Memory of a response beside its texts: objects, ids and table entries."""


@dataclass
class _KeptResponse:
    response: bytes
    """The response object as JSON."""
    messages: tuple[bytes, ...]
    """The conversation including the answer, without `instructions`, each message as JSON: an eighth of the memory of
    its objects. Conversations that continue each other share the messages."""
    items: bytes
    """The items of the input as JSON."""
    size: int
    """Bytes of memory. Shared messages are counted for each response."""
    used: float
    """Time of the last use, in seconds of the clock."""


class ResponseMemory:
    """Responses and their conversations, by owner and id. Nobody sees those of another owner. Thread-safe.

    Args:
        max_responses: maximum number of responses; the least recently used is dropped first.
        max_bytes: maximum memory.
        max_age_seconds: seconds that a response is kept after its last use.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        *,
        max_responses: int = 16_384,
        max_bytes: int = 256 * 1024 * 1024,
        max_age_seconds: float = 6 * 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._max_age = max_age_seconds
        self._clock = clock
        self._kept: OrderedDict[tuple[Hashable, str], _KeptResponse] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def conversation(self, owner: Hashable, response_id: str) -> tuple[dict[str, Any], ...]:
        """Return the messages up to and including a response; raises BadRequestError if it is not kept."""
        kept = self._find(owner, response_id)
        if kept is None:
            raise BadRequestError(
                f"Previous response with id {response_id!r} not found. It may have expired; send the whole "
                "conversation as input instead.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return tuple(json.loads(message) for message in kept.messages)

    def response(self, owner: Hashable, response_id: str) -> dict[str, Any]:
        """Return the response object; raises NotFoundError if it is not kept."""
        kept = self._find(owner, response_id)
        if kept is None:
            raise NotFoundError(f"Response with id {response_id!r} not found. It was not stored here, or has expired.")
        response: dict[str, Any] = json.loads(kept.response)
        return response

    def input_items(self, owner: Hashable, response_id: str) -> list[dict[str, Any]]:
        """Return the items of a response's input; raises NotFoundError if it is not kept."""
        self.response(owner, response_id)
        with self._lock:
            kept = self._kept.get((owner, response_id))
        return [] if kept is None else list(json.loads(kept.items))

    def keep(
        self,
        owner: Hashable,
        response: dict[str, Any],
        previous_id: str | None,
        messages: Sequence[dict[str, Any]],
        items: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Keep a response, unless it alone exceeds `max_bytes`.

        Args:
            owner: the only one who can read it.
            response: the response object.
            previous_id: the response that it continues.
            messages: the conversation including the answer.
            items: those of the input.
        """
        with self._lock:
            previous = self._kept.get((owner, previous_id)) if previous_id is not None else None
        known = () if previous is None else previous.messages
        encoded = (*known, *(encode(message) for message in messages[len(known) :]))
        body, encoded_items = encode(response), encode(list(items))
        size = len(body) + len(encoded_items) + sum(map(sys.getsizeof, encoded)) + sys.getsizeof(encoded) + _ENTRY_BYTES
        with self._lock:
            self._drop((owner, response["id"]))
            if size > self._max_bytes:
                return
            self._kept[owner, response["id"]] = _KeptResponse(body, encoded, encoded_items, size, self._clock())
            self._bytes += size
            while len(self._kept) > self._max_responses or self._bytes > self._max_bytes:
                self._drop(next(iter(self._kept)))
            self._expire()

    def forget(self, owner: Hashable, response_id: str) -> None:
        """Drop a response; raises NotFoundError if it is not kept."""
        self.response(owner, response_id)
        with self._lock:
            self._drop((owner, response_id))

    def forget_all(self, owner: Hashable) -> None:
        """Drop all responses of an owner."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == owner]:
                self._drop(key)

    def _find(self, owner: Hashable, response_id: str) -> _KeptResponse | None:
        with self._lock:
            self._expire()
            kept = self._kept.get((owner, response_id))
            if kept is not None:
                kept.used = self._clock()
                self._kept.move_to_end((owner, response_id))
            return kept

    def _expire(self) -> None:
        oldest = self._clock() - self._max_age
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if kept.used > oldest:
                return
            self._drop(key)

    def _drop(self, key: tuple[Hashable, str]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept.size
