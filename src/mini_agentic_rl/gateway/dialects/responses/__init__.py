"""OpenAI's responses: items instead of messages, and a server that remembers them."""

from .dialect import ResponsesDialect
from .memory import ResponseMemory

__all__ = ["ResponseMemory", "ResponsesDialect"]
