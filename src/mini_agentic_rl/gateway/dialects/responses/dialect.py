"""OpenAI responses over chat completions, and the memory of responses that they may go on from."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ....http import ANYBODY, BadRequestError, HttpError, checked, encode
from ...errors import NotFoundError
from ..base import CallScope, Counting, Dialect, Json, Lookup, renamed, sent
from ..custom_tools import grammar_of
from .answer import ResponseAnswer
from .request import (
    CHAT_FIELDS,
    FURTHER_FIELDS,
    TOOL_KINDS,
    ItemsPage,
    ResponsesRequest,
    chat_body,
    chat_messages,
    input_items,
    refuse_what_is_not_served,
)


class ResponsesExchange:
    """One request, and the response to it.

    Args:
        chat: the chat request.
        request: what was asked.
        conversation: its messages without `instructions`.
        memory: where the response is kept, unless the request says otherwise.
        owner: whose response it is.
    """

    def __init__(
        self,
        chat: Json,
        request: ResponsesRequest,
        conversation: Sequence[Json],
        memory: ResponseMemory,
        owner: Hashable,
    ) -> None:
        self.chat = chat
        self._request = request
        self._conversation = conversation
        self._memory = memory
        self._owner = owner
        self._answer = ResponseAnswer(request)

    def answer(self, completion: Json) -> Json:
        self._answer.take(completion)
        self._answer.finish()
        self._keep()
        return self._answer.body()

    def events(self, chunk: Json) -> bytes:
        return sent(self._answer.take(chunk))

    def end(self) -> bytes:
        events = self._answer.finish()
        self._keep()
        return sent(events)

    def failed(self, error: HttpError) -> bytes:
        return sent(self._answer.fail(renamed(error, CHAT_FIELDS)))

    def _keep(self) -> None:
        if self._request.store is not False:
            self._memory.keep(
                self._owner,
                self._answer.body(),
                self._request.previous_response_id,
                [*self._conversation, self._answer.message()],
                input_items(self._request.input, self._answer.id),
            )


class ResponsesDialect(Dialect):
    """`POST /v1/responses`, `GET` and `DELETE` of what it gave, `GET` of the items that it was given, and
    `POST /v1/responses/input_tokens`."""

    path = "/v1/responses"
    request = ResponsesRequest
    further = FURTHER_FIELDS
    tool_kinds = TOOL_KINDS

    def __init__(self, memory: ResponseMemory | None = None) -> None:
        self._memory = memory or ResponseMemory()
        one = f"{self.path}/{{id}}"
        self.lookups = (
            Lookup("GET", f"{one}/input_items", self._input_items),
            Lookup("GET", one, self._found),
            Lookup("DELETE", one, self._deleted),
        )
        self.counting = Counting(
            f"{self.path}/input_tokens", lambda body, scope, key: self.open(body, scope, key).chat, _counted
        )

    def open(self, body: Json, scope: CallScope, key: str = ANYBODY) -> ResponsesExchange:
        refuse_what_is_not_served(body)
        request = checked(ResponsesRequest, body)
        previous = request.previous_response_id
        earlier = () if previous is None else self._memory.conversation((key, scope), previous)
        conversation = [*earlier, *chat_messages(request.input)]
        if not conversation:
            raise BadRequestError("input: there is nothing to answer; give text or items", param="input")
        instructions = [] if request.instructions is None else [{"role": "system", "content": request.instructions}]
        chat = chat_body(request, body, [*instructions, *conversation])
        return ResponsesExchange(chat, request, conversation, self._memory, (key, scope))

    def left_out(self, body: Json) -> list[str]:
        tools = body.get("tools")
        placed = enumerate(tools) if isinstance(tools, list) else ()
        held = [at for at, tool in placed if isinstance(tool, dict) and grammar_of(tool) is not None]
        cut = ["truncation"] if body.get("truncation") == "auto" else []
        return [*super().left_out(body), *cut, *(f"tools[{at}].format" for at in held)]

    def refusal(self, error: HttpError) -> Json:
        return renamed(error, CHAT_FIELDS).body()

    def forget(self, scope: CallScope, key: str) -> None:
        self._memory.forget_all((key, scope))

    def _found(self, response_id: str, scope: CallScope, key: str, query: Mapping[str, str]) -> Json:
        found: Json = json.loads(self._memory.response((key, scope), response_id))
        return found

    def _input_items(self, response_id: str, scope: CallScope, key: str, query: Mapping[str, str]) -> Json:
        page = checked(ItemsPage, dict(query))
        items: list[Json] = json.loads(self._memory.input_items((key, scope), response_id))
        items = items[::-1] if page.order == "desc" else items
        start = 0
        if page.after is not None:
            start = next((at for at, item in enumerate(items, 1) if item["id"] == page.after), len(items))
        shown = items[start : start + page.limit]
        first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
        more = len(items) > start + page.limit
        return {"object": "list", "data": shown, "has_more": more, "first_id": first, "last_id": last}

    def _deleted(self, response_id: str, scope: CallScope, key: str, query: Mapping[str, str]) -> Json:
        self._memory.forget((key, scope), response_id)
        return {"id": response_id, "object": "response", "deleted": True}


def _counted(tokens: int) -> Json:
    return {"object": "response.input_tokens", "input_tokens": tokens}


_ENTRY_BYTES: Final = 1024
"""Memory of a kept response beside its texts: its objects, ids and places in tables."""


@dataclass
class _KeptResponse:
    response: bytes
    """The response object as JSON."""
    messages: tuple[bytes, ...]
    """The conversation up to and with the answer, without `instructions`: each message as JSON, which takes an eighth
    of the memory of its objects. Conversations that continue each other share them."""
    message_bytes: int
    """Memory of all messages. Those that conversations share are counted for each."""
    items: bytes
    """The items of its input as JSON."""
    used: float
    """Time at which it was last asked for, in seconds of the clock."""

    @property
    def size(self) -> int:
        return len(self.response) + len(self.items) + self.message_bytes + _ENTRY_BYTES


class ResponseMemory:
    """Conversations by owner, which is a key and a scope, and by response id. Nobody sees those of
    another owner. Used from any thread.

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
        self._kept: OrderedDict[tuple[Hashable, str], _KeptResponse] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def conversation(self, owner: Hashable, response_id: str) -> tuple[Json, ...]:
        """Return the messages that lead up to a response, and its answer.

        Raises:
            BadRequestError: it is not kept.
        """
        kept = self._find(owner, response_id)
        if kept is None:
            raise BadRequestError(
                f"Previous response with id {response_id!r} not found. It may have expired; send the whole "
                "conversation as input instead.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return tuple(json.loads(message) for message in kept.messages)

    def response(self, owner: Hashable, response_id: str) -> bytes:
        """Return the response object as JSON.

        Raises:
            NotFoundError: it is not kept.
        """
        return self._known(owner, response_id).response

    def input_items(self, owner: Hashable, response_id: str) -> bytes:
        """Return the items of a response's input as JSON.

        Raises:
            NotFoundError: it is not kept.
        """
        return self._known(owner, response_id).items

    def keep(
        self,
        owner: Hashable,
        response: Json,
        previous_id: str | None,
        messages: Sequence[Json],
        items: Sequence[Json] = (),
    ) -> None:
        """Keep a response, unless it alone is beyond the bound.

        Args:
            response: the response object.
            previous_id: the response that it continues.
            messages: the conversation up to and with its answer.
            items: those of its input.
        """
        with self._lock:
            previous = self._kept.get((owner, previous_id)) if previous_id is not None else None
        known = () if previous is None else previous.messages
        encoded = (*known, *(encode(message) for message in messages[len(known) :]))
        held = sum(map(sys.getsizeof, encoded)) + sys.getsizeof(encoded)
        kept = _KeptResponse(encode(response), encoded, held, encode(list(items)), self._clock())
        with self._lock:
            self._forget((owner, response["id"]))
            if kept.size > self._max_bytes:
                return
            self._kept[owner, response["id"]] = kept
            self._bytes += kept.size
            while len(self._kept) > self._max_responses or self._bytes > self._max_bytes:
                self._forget(next(iter(self._kept)))
            self._expire()

    def forget(self, owner: Hashable, response_id: str) -> None:
        """Drop a response.

        Raises:
            NotFoundError: it is not kept.
        """
        self._known(owner, response_id)
        with self._lock:
            self._forget((owner, response_id))

    def forget_all(self, owner: Hashable) -> None:
        """Drop all responses of an owner."""
        with self._lock:
            for known in [known for known in self._kept if known[0] == owner]:
                self._forget(known)

    def _known(self, owner: Hashable, response_id: str) -> _KeptResponse:
        kept = self._find(owner, response_id)
        if kept is None:
            raise NotFoundError(f"Response with id {response_id!r} not found. It was not stored here, or has expired.")
        return kept

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
            self._forget(key)

    def _forget(self, key: tuple[Hashable, str]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept.size
