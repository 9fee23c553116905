"""What agents speak: each dialect is a wire format over OpenAI's chat completions."""

from .base import Dialect, Exchange
from .chat import ChatDialect

__all__ = ["ChatDialect", "Dialect", "Exchange", "all_dialects"]


def all_dialects() -> list[Dialect]:
    """Every dialect, new: what one remembers between requests belongs to one server."""
    return [ChatDialect()]
