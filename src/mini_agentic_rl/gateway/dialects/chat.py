"""OpenAI chat completions: the form that is served inside, so everything passes as it is."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import GatewayError
from .base import Json, server_sent

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class ChatExchange:
    """A chat request."""

    chat: Json

    def answer(self, completion: Json) -> Json:
        return completion

    def events(self, chunk: Json) -> bytes:
        return server_sent(chunk)

    def end(self) -> bytes:
        return DONE

    def failed(self, error: GatewayError) -> bytes:
        return server_sent(error.body())


class ChatDialect:
    """`POST /v1/chat/completions`."""

    path = "/v1/chat/completions"

    def open(self, body: Json, scope: tuple[str, str] | None) -> ChatExchange:
        return ChatExchange(body)

    def refusal(self, error: GatewayError) -> Json:
        return error.body()
