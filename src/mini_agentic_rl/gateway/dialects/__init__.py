"""Wire formats that agents speak, each over the one form that is served inside, OpenAI's chat completions.

A dialect turns its request into the body of a chat request, which `parse_chat_request` checks, and turns the answer,
whole or chunk by chunk, into its own shape.
"""

from .anthropic import AnthropicDialect
from .base import Counting, Dialect, Exchange, Lookup, Scope, assistant_message
from .chat import ChatDialect, ChatRequest, FunctionDefinition, ResponseFormat, parse_chat_request
from .completions import CompletionsDialect
from .responses import ResponsesDialect

__all__ = [
    "AnthropicDialect",
    "ChatDialect",
    "ChatRequest",
    "CompletionsDialect",
    "Counting",
    "Dialect",
    "Exchange",
    "FunctionDefinition",
    "Lookup",
    "ResponseFormat",
    "ResponsesDialect",
    "Scope",
    "all_dialects",
    "assistant_message",
    "parse_chat_request",
]


def all_dialects() -> list[Dialect]:
    """Return every dialect, new: what one remembers between requests belongs to one server."""
    return [ChatDialect(), ResponsesDialect(), AnthropicDialect()]
