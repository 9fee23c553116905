"""Responses that were given, so that `previous_response_id` continues them. Bounded, and forgotten with time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....http import encode
from ...errors import BadRequestError, NotFoundError
from ..base import Json, Scope


@dataclass
class _Kept:
    response: bytes
    """The response object as JSON."""
    messages: tuple[Json, ...]
    """The conversation up to and with the answer, without `instructions`."""
    message_bytes: int
    """Size of all messages. Those that conversations share are counted for each."""
    used: float
    """When it was last asked for, in seconds of the clock."""

    @property
    def size(self) -> int:
        return len(self.response) + self.message_bytes


class ResponseMemory:
    """Conversations by response id. Nobody sees those of another scope. Used from one event loop.

    Args:
        max_responses: responses kept; the one used longest ago is forgotten first.
        max_bytes: bytes kept in all.
        max_age_seconds: how long a response is kept after its last use.
        clock: tells the time in seconds.
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
        self._kept: OrderedDict[tuple[Scope, str], _Kept] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def conversation(self, scope: Scope, response_id: str) -> tuple[Json, ...]:
        """The messages that lead up to a response, and its answer.

        Raises:
            BadRequestError: it is not kept.
        """
        kept = self._find(scope, response_id)
        if kept is None:
            raise BadRequestError(
                f"Previous response with id {response_id!r} not found. It may have expired; send the whole "
                "conversation as input instead.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return kept.messages

    def response(self, scope: Scope, response_id: str) -> bytes:
        """The response object as JSON.

        Raises:
            NotFoundError: it is not kept.
        """
        kept = self._find(scope, response_id)
        if kept is None:
            raise _not_found(response_id)
        return kept.response

    def keep(self, scope: Scope, response: Json, previous_id: str | None, messages: Sequence[Json]) -> None:
        """Keep a response, unless it alone is beyond the bound.

        Args:
            response: the response object.
            previous_id: the response that it continues.
            messages: the conversation up to and with its answer.
        """
        previous = self._kept.get((scope, previous_id)) if previous_id is not None else None
        known = len(previous.messages) if previous is not None else 0
        new_bytes = sum(len(encode(message)) for message in messages[known:])
        message_bytes = new_bytes + (previous.message_bytes if previous is not None else 0)
        self._forget((scope, response["id"]))
        kept = _Kept(encode(response), tuple(messages), message_bytes, self._clock())
        if kept.size > self._max_bytes:
            return
        self._kept[scope, response["id"]] = kept
        self._bytes += kept.size
        while len(self._kept) > self._max_responses or self._bytes > self._max_bytes:
            self._forget(next(iter(self._kept)))
        self._expire()

    def forget(self, scope: Scope, response_id: str) -> None:
        """Keep a response no longer.

        Raises:
            NotFoundError: it is not kept.
        """
        if self._find(scope, response_id) is None:
            raise _not_found(response_id)
        self._forget((scope, response_id))

    def _find(self, scope: Scope, response_id: str) -> _Kept | None:
        self._expire()
        kept = self._kept.get((scope, response_id))
        if kept is not None:
            kept.used = self._clock()
            self._kept.move_to_end((scope, response_id))
        return kept

    def _expire(self) -> None:
        oldest = self._clock() - self._max_age
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if kept.used > oldest:
                return
            self._forget(key)

    def _forget(self, key: tuple[Scope, str]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept.size


def _not_found(response_id: str) -> NotFoundError:
    return NotFoundError(f"Response with id {response_id!r} not found. It was not stored here, or has expired.")
