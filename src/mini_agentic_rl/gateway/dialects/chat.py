"""OpenAI chat completions: the form that is served inside, so everything passes as it is."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import GatewayError
from .base import Counting, Json, Lookup, Scope, server_sent
from .functions import as_function_call, as_tools, has_functions

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class ChatExchange:
    """A chat request."""

    chat: Json
    functions: bool = False
    """Whether the answer tells calls in the older form."""

    def answer(self, completion: Json) -> Json:
        return as_function_call(completion) if self.functions else completion

    def events(self, chunk: Json) -> bytes:
        return server_sent(self.answer(chunk))

    def end(self) -> bytes:
        return DONE

    def failed(self, error: GatewayError) -> bytes:
        return server_sent(error.body())


class ChatDialect:
    """`POST /v1/chat/completions`."""

    path = "/v1/chat/completions"
    lookups: tuple[Lookup, ...] = ()
    counting: Counting | None = None

    def open(self, body: Json, scope: Scope) -> ChatExchange:
        return ChatExchange(as_tools(body), functions=True) if has_functions(body) else ChatExchange(body)

    def refusal(self, error: GatewayError) -> Json:
        return error.body()
