"""OpenAI responses over chat completions."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ....http import checked
from ...errors import BadRequestError, GatewayError
from ..base import Counting, Json, Lookup, Scope, renamed, server_sent
from .answer import ResponseAnswer
from .history import chat_messages
from .memory import ResponseMemory
from .request import CHAT_FIELDS, ResponsesRequest, chat_body, refuse_what_is_not_served


class ResponsesExchange:
    """One request, and the response to it.

    Args:
        chat: the chat request.
        request: what was asked.
        conversation: its messages without `instructions`.
        memory: where the response is kept, unless the request says otherwise.
        scope: whose response it is.
    """

    def __init__(
        self,
        chat: Json,
        request: ResponsesRequest,
        conversation: Sequence[Json],
        memory: ResponseMemory,
        scope: Scope,
    ) -> None:
        self.chat = chat
        self._request = request
        self._conversation = conversation
        self._memory = memory
        self._scope = scope
        self._answer = ResponseAnswer(request)

    def answer(self, completion: Json) -> Json:
        self._answer.take(completion)
        self._answer.finish()
        self._keep()
        return self._answer.body()

    def events(self, chunk: Json) -> bytes:
        return _sent(self._answer.take(chunk))

    def end(self) -> bytes:
        events = self._answer.finish()
        self._keep()
        return _sent(events)

    def failed(self, error: GatewayError) -> bytes:
        return _sent(self._answer.fail(renamed(error, CHAT_FIELDS)))

    def _keep(self) -> None:
        if self._request.store is not False:
            self._memory.keep(
                self._scope,
                self._answer.body(),
                self._request.previous_response_id,
                [*self._conversation, self._answer.message()],
            )


class ResponsesDialect:
    """`POST /v1/responses`, `GET` and `DELETE` of what it gave, and `POST /v1/responses/input_tokens`."""

    path = "/v1/responses"

    def __init__(self, memory: ResponseMemory | None = None) -> None:
        self._memory = memory or ResponseMemory()
        one = f"{self.path}/{{id}}"
        self.lookups = (Lookup("GET", one, self._found), Lookup("DELETE", one, self._deleted))
        self.counting = Counting(f"{self.path}/input_tokens", lambda body, scope: self.open(body, scope).chat, _counted)

    def open(self, body: Json, scope: Scope) -> ResponsesExchange:
        refuse_what_is_not_served(body)
        request = checked(ResponsesRequest, body)
        previous = request.previous_response_id
        earlier = () if previous is None else self._memory.conversation(scope, previous)
        conversation = [*earlier, *chat_messages(request.input)]
        if not conversation:
            raise BadRequestError("input: there is nothing to answer; give text or items", param="input")
        instructions = [] if request.instructions is None else [{"role": "system", "content": request.instructions}]
        chat = chat_body(request, body, [*instructions, *conversation])
        return ResponsesExchange(chat, request, conversation, self._memory, scope)

    def refusal(self, error: GatewayError) -> Json:
        return renamed(error, CHAT_FIELDS).body()

    def _found(self, response_id: str, scope: Scope) -> Json:
        found: Json = json.loads(self._memory.response(scope, response_id))
        return found

    def _deleted(self, response_id: str, scope: Scope) -> Json:
        self._memory.forget(scope, response_id)
        return {"id": response_id, "object": "response", "deleted": True}


def _counted(tokens: int) -> Json:
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _sent(events: Sequence[Json]) -> bytes:
    return b"".join(server_sent(event, event["type"]) for event in events)
