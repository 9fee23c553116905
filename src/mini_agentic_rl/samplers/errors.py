"""The errors of samplers, as the agent that asked is told of them."""

from __future__ import annotations

from ..http import BadRequestError


class ContextLengthError(BadRequestError):
    """The prompt leaves no room for a continuation."""

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(
            f"This model's maximum context length is {limit} tokens, but the messages have {prompt_tokens} tokens. "
            "Shorten the messages, or serve a model with a longer context.",
            param="messages",
            code="context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit
