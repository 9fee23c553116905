"""OpenAI's responses: items instead of messages, and a server that remembers them."""

from .dialect import ResponseMemory, ResponsesDialect

__all__ = ["ResponseMemory", "ResponsesDialect"]
