"""What agents speak: each dialect is a wire format over OpenAI's chat completions."""

from .anthropic import AnthropicDialect
from .base import Dialect, Exchange
from .chat import ChatDialect
from .responses import ResponsesDialect

__all__ = ["AnthropicDialect", "ChatDialect", "Dialect", "Exchange", "ResponsesDialect", "all_dialects"]


def all_dialects() -> list[Dialect]:
    """Every dialect, new: what one remembers between requests belongs to one server."""
    return [ChatDialect(), ResponsesDialect(), AnthropicDialect()]
