"""Anthropic messages over chat completions."""

from __future__ import annotations

from typing import Final

from ....http import ANYBODY, HttpError, checked
from ..base import CallScope, Counting, Dialect, Json, renamed, sent, server_sent
from .answer import MessageAnswer
from .request import CHAT_FIELDS, TOOL_KINDS, MessagesRequest, chat_body, chat_messages

_ERRORS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessagesExchange:
    """One request, and the message that answers it."""

    def __init__(self, chat: Json, request: MessagesRequest) -> None:
        self.chat = chat
        self._answer = MessageAnswer(
            request.model, request.stop_sequences or (), with_ids=bool(request.return_token_ids)
        )

    def answer(self, completion: Json) -> Json:
        self._answer.take(completion)
        return self._answer.body()

    def events(self, chunk: Json) -> bytes:
        return sent(self._answer.take(chunk))

    def end(self) -> bytes:
        return sent(self._answer.finish())

    def failed(self, error: HttpError) -> bytes:
        return server_sent(_refusal(error), "error")


class AnthropicDialect(Dialect):
    """`POST /v1/messages`, and `POST /v1/messages/count_tokens`."""

    path = "/v1/messages"
    request = MessagesRequest
    tool_kinds = TOOL_KINDS
    counts_first = True

    def __init__(self) -> None:
        self.counting = Counting(f"{self.path}/count_tokens", self._to_count, lambda tokens: {"input_tokens": tokens})

    def open(self, body: Json, scope: CallScope, key: str = ANYBODY) -> MessagesExchange:
        request = checked(MessagesRequest, body)
        return MessagesExchange(chat_body(request, body, chat_messages(request)), request)

    def refusal(self, error: HttpError) -> Json:
        return _refusal(error)

    def _to_count(self, body: Json, scope: CallScope, key: str) -> Json:
        """Return the chat request of one that is only counted, and so need not say how long its answer may be."""
        return self.open({**body, "max_tokens": 2**31}, scope, key).chat


def _refusal(error: HttpError) -> Json:
    kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": renamed(error, CHAT_FIELDS).message}}
