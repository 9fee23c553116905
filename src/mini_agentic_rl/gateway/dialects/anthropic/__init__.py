"""Anthropic's messages: content blocks, tool results in the user's turns."""

from .dialect import AnthropicDialect

__all__ = ["AnthropicDialect"]
